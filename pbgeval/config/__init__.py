"""A config file -> `EvalConfig`, checked; its keys explained."""

from pbgeval.config.explain import help_config
from pbgeval.config.faults import read_relation_groups
from pbgeval.config.loading import check_config, config_of_dict, config_of_keys, load_config
from pbgeval.config.schema import EntitySchema, EvalConfig, RelationSchema

__all__ = [
    "EntitySchema",
    "EvalConfig",
    "RelationSchema",
    "check_config",
    "config_of_dict",
    "config_of_keys",
    "help_config",
    "load_config",
    "read_relation_groups",
]
