"""The records of options are those of the functions that take them."""

import inspect
import typing

import pytest

from trio_envserve import CallOptions, Client, ServerOptions, open_client, open_server, serve


def keywords(function, *without):
    found = typing.get_type_hints(inspect.unwrap(function))
    names = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name not in without
    ]
    return {name: found[name] for name in names}


@pytest.mark.parametrize(
    ("record", "function", "without"),
    [(CallOptions, Client.outcome, ("kind",)), (ServerOptions, open_server, ())],
)
def test_the_records_of_options_have_what_the_functions_take(record, function, without):
    assert typing.get_type_hints(record) == keywords(function, *without)


@pytest.mark.parametrize("function", [open_server, open_client, serve])
def test_no_public_function_takes_what_only_tests_give(function):
    assert "new_id" not in typing.get_type_hints(inspect.unwrap(function))
    assert "new_id" not in typing.get_type_hints(ServerOptions)
