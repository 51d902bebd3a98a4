"""What planners share: what they return, how they are judged, how long they may take, what nobody can beat."""
