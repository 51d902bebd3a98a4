"""What each compute node costs on a device."""

from remat_codegen.profile.costs import Profile

__all__ = ["Profile"]
