"""What users raise, catch, receive or write into a signature, the package exports; and what its
records of options and of servers are."""

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
import typing

import pytest
import trio

import trio_envserve
from tests.memory import ADDRESS, pair, virtual
from trio_envserve import (
    CallOptions,
    ClosingStage,
    EnvServeError,
    Health,
    ServerHealth,
    ServerOptions,
    ServerStats,
    ServerStatus,
    StatusRecord,
    net,
    open_client,
    open_server,
    serve,
)
from trio_envserve.client.options import checked

# The packages that a user's program imports; their errors may reach it.
LAYERS = ("core", "net", "models", "envs", "worker", "host", "server", "client")

# Errors that another part of the package always catches.
CAUGHT_INSIDE = {"ForeignVersion", "ForeignHost", "ServiceDown", "ServiceUnavailable"}

# Classes whose own signatures are for who makes a new kind of network: `trio_envserve.net`.
FOR_MAKERS = {"Network"}

PUBLIC = sorted(set(trio_envserve.__all__) - FOR_MAKERS)


def errors_below(cls):
    for below in cls.__subclasses__():
        yield below
        yield from errors_below(below)


def package_errors():
    for layer in LAYERS:
        package = importlib.import_module(f"trio_envserve.{layer}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
    homes = tuple(f"trio_envserve.{layer}." for layer in LAYERS)
    return {cls.__name__ for cls in errors_below(EnvServeError) if cls.__module__.startswith(homes)}


def callables(found):
    """The functions whose signatures a public name stands for."""
    if not inspect.isclass(found):
        return [inspect.unwrap(found)] if callable(found) else []
    functions = []
    for name, member in vars(found).items():
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        if isinstance(member, property):
            member = member.fget
        if not name.startswith("_") and inspect.isfunction(member):
            functions.append(inspect.unwrap(member))
    return functions


def annotations(found):
    """The annotations of a public name, as they are written."""
    for function in callables(found):
        said = vars(function).get("__signature__")  # of the method that a face passes on
        if said is None:
            yield from function.__annotations__.values()
        else:
            yield from (each.annotation for each in said.parameters.values())
            yield said.return_annotation
    if inspect.isclass(found):
        for name, annotation in inspect.get_annotations(found).items():
            if not name.startswith("_"):
                yield annotation


def names(annotation):
    """The bare names in an annotation."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        return set()
    tree = ast.parse(annotation, mode="eval")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def own_names(module):
    """The names in a module that are of this package: defined here, or imported from it."""
    tree = ast.parse(inspect.getsource(module))
    foreign = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)
        for alias in node.names
    }
    return set(vars(module)) - foreign


def signature_names(name):
    found = getattr(trio_envserve, name)
    module = sys.modules.get(getattr(found, "__module__", ""))
    if module is None or not module.__name__.startswith("trio_envserve"):
        return set()  # an alias of types of others
    return {each for one in annotations(found) for each in names(one)} & own_names(module)


def test_every_error_that_can_reach_a_user_is_exported():
    missing = package_errors() - CAUGHT_INSIDE - set(trio_envserve.__all__)
    assert not missing


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_in_a_public_signature_is_exported(name):
    assert signature_names(name) <= set(trio_envserve.__all__)


@pytest.mark.parametrize("name", sorted(FOR_MAKERS))
def test_every_name_in_the_signatures_of_a_network_is_exported_by_net(name):
    assert signature_names(name) <= {*net.__all__, *trio_envserve.__all__}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_class_that_a_public_docstring_names_can_be_imported(name):
    text = inspect.getdoc(getattr(trio_envserve, name)) or ""
    named = set(re.findall(r":class:`~?trio_envserve\.(\w+)`", text))
    assert named <= set(trio_envserve.__all__)


def test_no_public_name_is_one_of_trio_with_another_meaning():
    assert not set(trio_envserve.__all__) & set(dir(trio))


def test_the_looking_glass_sees_a_name():
    assert {"Rollout", "Outcome"} <= set(PUBLIC)
    assert signature_names("Outcome") >= {"CallError", "Outcome"}
    assert "ServerLimits" in signature_names("ServerOptions")


# -- records of options ----------------------------------------------------------


def test_the_record_of_options_has_what_a_call_takes():
    found = typing.get_type_hints(checked)
    named = {
        name: found[name]
        for name, parameter in inspect.signature(checked).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name != "kind"
    }
    assert typing.get_type_hints(CallOptions) == named


@pytest.mark.parametrize("function", [open_server, open_client, serve])
def test_no_public_function_takes_what_only_tests_give(function):
    assert "new_id" not in typing.get_type_hints(inspect.unwrap(function))
    assert "new_id" not in typing.get_type_hints(ServerOptions)


# -- records of what is told -----------------------------------------------------


@virtual
async def test_records_of_a_server_are_frozen():
    async with pair("arithmetic") as (server, client):
        assert client.health() == ServerHealth(Health.STARTING, "no answer yet")
        await client.wait_ready()
        health, status = client.health(), server.status()
        await client.run_rollout({"index": 0})
        told, own = await client.stats(), server.stats()
        await server.drain()
        closing = server.status().closing
    assert (health.health, health.reason) == (Health.HEALTHY, "")
    assert status == StatusRecord(
        status=ServerStatus.READY, reason="", ready=1, workers=1, environment="arithmetic",
        rerun=False,
    )  # fmt: skip
    assert isinstance(told, ServerStats)
    assert (told.cache, told.environment) == (own.cache, "arithmetic")
    assert own.more["address"] == ADDRESS
    assert list(told.to_record()) == list(own.to_record())
    assert closing is not None
    assert closing.stage is not ClosingStage.SERVING
    for record in (health, status, closing, own, own.per_worker[0]):
        assert not hasattr(record, "__dict__")
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, dataclasses.fields(record)[0].name, None)
