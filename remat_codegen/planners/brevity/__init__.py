"""Plans that read shorter: equal blocks in equal ways."""
