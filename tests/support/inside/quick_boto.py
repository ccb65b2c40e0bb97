"""Clients of boto3 for processes that make many: what botocore looks up and parses for each of them, it does once."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from botocore import hooks
from botocore.endpoint_provider import EndpointProvider, RuleSet
from botocore.loaders import JSONFileLoader, Loader

_alias, _accepts_kwargs = hooks.EventAliaser._alias_event_name, hooks.accepts_kwargs
_load_file, _list_services = JSONFileLoader.load_file, Loader.list_available_services
_rules: dict[int, RuleSet] = {}
_aliases: dict[str, str] = {}


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


def _aliased(self: Any, name: str) -> str:
    if name not in _aliases:
        _aliases[name] = _alias(self, name)
    return _aliases[name]


def _accepts(function: Callable[..., Any]) -> bool:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return bool(code.co_flags & inspect.CO_VARKEYWORDS) if code is not None else _accepts_kwargs(function)


hooks.EventAliaser._alias_event_name = _aliased
hooks.accepts_kwargs = _accepts
JSONFileLoader.load_file = lambda _, path: _parsed(path)
Loader.list_available_services = lambda _, kind: _services(kind)
EndpointProvider.__init__ = _provide
