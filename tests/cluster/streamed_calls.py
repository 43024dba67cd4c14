"""A streamed chat with calls, put together."""
import json

from harness import events


def streamed(body):
    """choice -> [content, {call's index: [id, name, arguments]}, end]"""
    got = {}
    for event in events(body):
        for choice in json.loads(event)["choices"] if event != "[DONE]" else []:
            mine = got.setdefault(choice["index"], ["", {}, None])
            mine[0] += choice["delta"].get("content") or ""
            mine[2] = choice["finish_reason"] or mine[2]
            for piece in choice["delta"].get("tool_calls", []):
                if "id" in piece:
                    assert piece["type"] == "function", piece
                    mine[1][piece["index"]] = [piece["id"], piece["function"]["name"], ""]
                mine[1][piece["index"]][2] += piece["function"]["arguments"]
    return got
