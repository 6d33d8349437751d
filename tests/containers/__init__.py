"""`make containers`: what docs/containers.md promises, tried on image and compose file of this tree."""
