"""Every error that Penstock raises, as one tree: see :mod:`penstock.schemas.errors`."""

from .schemas.errors import *  # noqa: F403
