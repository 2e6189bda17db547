"""Rows by nemo_gym's own client: ``python nemo_gym_client.py URL NUMBER``.

It is run by an interpreter that has nemo_gym 0.4.0, and nothing of this project.  What that
library's collection of rollouts does is done: ``request`` as ``ServerClient`` calls it,
``raise_for_status``, ``get_response_json``; and a row whose answer broke off in its middle,
which ends a collection, is dispatched again as NeMo RL does.
"""

import asyncio
import json
import sys

from aiohttp import ClientPayloadError
from nemo_gym import server_utils


async def run(url, index):
    row = {
        "_ng_task_index": index, "_ng_rollout_index": 0, "agent_ref": {"name": "envserve"},
        "responses_create_params": {"input": [{"role": "user", "content": f"Row {index}"}]},
    }  # fmt: skip
    while True:
        response = await server_utils.request("POST", f"{url}/run", _internal=True, json=row)
        await server_utils.raise_for_status(response)
        try:
            return await server_utils.get_response_json(response)
        except ClientPayloadError:
            pass


async def main(url, number):
    config = server_utils.GlobalAIOHTTPAsyncClientConfig()
    client = server_utils.set_global_aiohttp_client(config)
    found = await asyncio.gather(*(run(url, index) for index in range(number)))
    await client.close()
    return [(row["_ng_task_index"], row["reward"], row["response"]) for row in found]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2])))))
