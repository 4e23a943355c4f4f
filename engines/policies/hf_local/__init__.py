"""The policy `hf:`: a model in this process, whose weights can be trained.

`load_local` needs the extra `grpo`; importing this package does not, so that a missing extra
is told in one line.
"""

from engines.policies.hf_local.loading import load_local
from engines.policies.hf_local.settings import LocalSettings, LoraSettings

__all__ = ["LocalSettings", "LoraSettings", "load_local"]
