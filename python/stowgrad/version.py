"""Versions, as `torch.version` gives them."""

from stowgrad import __version__, torch_version

__all__ = ["__version__", "cuda", "debug", "git_version", "hip"]
cuda = None
hip = None
debug = False
git_version = "unknown"
torch = torch_version
