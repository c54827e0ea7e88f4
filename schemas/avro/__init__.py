"""Every schema ever published, one file a version."""
