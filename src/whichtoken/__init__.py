"""Which token does softmax attention pick, why, and how confidently."""

# first, before anything is imported that could lie in the working folder
from whichtoken.working_folder import distrust_settings  # isort: split

from whichtoken.extras import attach
from whichtoken.kernel_cache import ensure_kernel_cache, lock_kernel_cache

__version__ = "0.3.0"

# before anything imports matplotlib or numba
distrust_settings()
ensure_kernel_cache()
lock_kernel_cache()

__getattr__, __dir__, __all__ = attach(__name__, __file__)
