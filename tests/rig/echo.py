"""A program that answers each order with the order."""

import os

import trio

from tests.rig.program import given_options, obey_orders, say


async def obey(order):
    say("obeyed", **order)


if __name__ == "__main__":
    say("begun", cwd=os.getcwd(), **given_options())
    trio.run(obey_orders, obey)
