"""The configuration of a run: what may be set, within which limits, and how a file and `--set` become one."""

from configs.loading import ConfigError, dump_config, load_config
from configs.schema import Config

__all__ = ["Config", "ConfigError", "dump_config", "load_config"]
