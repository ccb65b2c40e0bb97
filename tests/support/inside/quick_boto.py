"""Clients of boto3 for processes that make many: what botocore looks up and parses for each of them, it does once."""

from functools import cache
from typing import Any

from botocore.endpoint_provider import EndpointProvider, RuleSet
from botocore.loaders import JSONFileLoader, Loader

_load_file, _list_services = JSONFileLoader.load_file, Loader.list_available_services
_rules: dict[int, RuleSet] = {}


@cache
def _parsed(path: str) -> Any:
    return _load_file(JSONFileLoader(), path)


@cache
def _services(kind: str) -> list[str]:
    return _list_services(Loader(), kind)


def _provide(self: Any, ruleset_data: Any, partition_data: Any, excluded_params: Any = None) -> None:
    if id(ruleset_data) not in _rules:
        _rules[id(ruleset_data)] = RuleSet(**ruleset_data, partitions=partition_data)
    self.ruleset = _rules[id(ruleset_data)]
    self._excluded_params = excluded_params or frozenset()


JSONFileLoader.load_file = lambda _, path: _parsed(path)
Loader.list_available_services = lambda _, kind: _services(kind)
EndpointProvider.__init__ = _provide
