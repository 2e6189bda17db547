"""Forms of rows that NeMo Gym's own examples have, one of each, in words of this project."""

from __future__ import annotations

from typing import Any

USER = {"role": "user", "content": "What is 2 + 2?"}
SYSTEM = {"role": "system", "content": "Be brief."}
LOOK_UP = {
    "type": "function", "name": "look_up", "description": "Look something up.", "strict": True,
    "parameters": {
        "type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"],
        "additionalProperties": False,
    },
}  # fmt: skip
NULLS = dict.fromkeys((
    "background", "include", "instructions", "max_output_tokens", "max_tool_calls", "metadata",
    "model", "previous_response_id", "prompt", "reasoning", "service_tier", "store",
    "temperature", "text", "top_logprobs", "top_p", "truncation", "user", "stream",
))  # fmt: skip
SAID: dict[str, Any] = {
    "type": "output_text",
    "text": "It is 4.",
    "annotations": [],
    "logprobs": None,
}
CALL = {
    "type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"what": "2 + 2"}',
    "id": "fc1", "status": "completed",
}  # fmt: skip
THOUGHT = {
    "type": "reasoning", "id": "rs1", "encrypted_content": None,
    "summary": [{"type": "summary_text", "text": "They want a sum."}],
}  # fmt: skip
IMAGE = {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,iVBORw0K"}

FORMS: dict[str, dict[str, Any]] = {
    "text": {"responses_create_params": {"input": "What is 2 + 2?"}},
    "user": {"responses_create_params": {"input": [USER]}, "expected_answer": "4"},
    "system": {"responses_create_params": {"input": [SYSTEM, USER]}, "uuid": "u-1", "answer": 4},
    "developer": {
        "responses_create_params": {
            "input": [{"role": "developer", "content": "Be brief."}, USER],
            "tools": [LOOK_UP], "tool_choice": "auto", "parallel_tool_calls": True,
        },
        "agent_ref": {"type": "responses_api_agents", "name": "simple_agent"},
    },
    "typed messages": {
        "responses_create_params": {"input": [{"type": "message", **SYSTEM}, USER]}
    },
    "dialogue": {
        "responses_create_params": {
            "input": [SYSTEM, USER, {"role": "assistant", "content": "4"}, USER]
        },
        "rubric": [{"criterion": "is right", "weight": 1.0}],
    },
    "parts": {
        "responses_create_params": {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "See:"}, IMAGE]}]
        },
        "verifier_metadata": {"answer": "a cat"},
    },
    "instructions": {
        "responses_create_params": {
            "instructions": "Use the tools.", "input": "What is 2 + 2?", "tools": [LOOK_UP],
            "reasoning": {"effort": "medium"},
        },
        "prompt": "the name of a prompt's file",
    },
    "calls": {
        "responses_create_params": {
            **NULLS, "parallel_tool_calls": False, "tool_choice": "auto", "tools": [LOOK_UP],
            "input": [
                {"type": "message", **USER}, THOUGHT,
                {"type": "message", "role": "assistant", "id": "m", "status": "completed",
                 "content": [SAID]},
                CALL, {"type": "function_call_output", "call_id": "c1", "output": "4"},
                {"type": "message", **USER},
            ],
        },
        "expected_action": {"type": "message", "content": "4"},
    },
    "sampling": {
        "responses_create_params": {
            "input": [USER], "temperature": 0.6, "top_p": 0.95, "max_output_tokens": 2048,
            "stream": False, "store": None,
        },
        "id": 7, "seed": 3,
    },
    "choice": {
        "responses_create_params": {
            "input": [USER], "tools": [LOOK_UP], "tool_choice": "none",
            "parallel_tool_calls": False,
        },
    },
    "metadata": {
        "responses_create_params": {
            "input": [USER], "metadata": {"extra_body": '{"stop": ["</tool_call>"]}'},
        },
        "difficulty": "hard", "options": [{"A": "3"}, {"B": "4"}],
    },
}  # fmt: skip
