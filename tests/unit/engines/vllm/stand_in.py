"""Stands in for `vllm serve`: answers what vLLM answers, starts a child of its own, dies when told to."""

import http.server
import json
import os
import subprocess
import sys
import time

arguments = dict(word.lstrip("-").partition("=")[::2] for word in sys.argv[2:] if "=" in word)
mode = os.environ["STAND_IN_MODE"]
METRICS = """vllm:spec_decode_num_drafts_total{engine="0"} 3.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 9.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5.0
"""
print("loading the model", flush=True)
if mode == "fails":
    sys.exit("no such flag")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(f"child {child.pid}", flush=True)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send(200, METRICS.encode() if self.path == "/metrics" else b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if mode == "dies" or (mode == "dies over 13" and body["prompt"][0] == 13):
            print("out of memory", flush=True)
            os._exit(9)
        if mode == "refuses":
            self.answer(400, {"error": "prompt too long"})
            return
        ids = [body["prompt"][0] + offset for offset in range(body["max_tokens"])]
        counts = {"per_step_drafted": [3, 3, 3], "per_step_accepted": [0, 2, 3]}
        if mode == "drafts nothing":
            counts = {**dict.fromkeys(counts), "num_spec_steps": 0}
        if body.get("stream"):
            self.stream(body, ids)
            return
        answer = {"choices": [{"token_ids": ids, "finish_reason": "length"}]}
        if mode != "tells nothing":
            answer["metrics"] = {"speculative_decoding": counts}
        self.answer(200, answer if mode != "is strange" else {"choices": []})

    def stream(self, body: dict, ids: list[int]) -> None:
        """Pieces of three ids, each a verification but for the first id; a slow one waits between them."""
        self.send_response(200)
        self.end_headers()
        pieces = [ids[:1], *(ids[start : start + 3] for start in range(1, len(ids), 3))]
        for place, piece in enumerate(pieces):
            reason = "length" if place == len(pieces) - 1 else None
            self.event({"choices": [{"token_ids": piece, "finish_reason": reason}]})
            if mode == "dies slowly" and place == 1:
                print("out of memory", flush=True)
                os._exit(9)
            if mode == "is slow":
                time.sleep(0.2)
        metrics = None
        if "speculative-config" in arguments:
            depth = json.loads(arguments["speculative-config"])["num_speculative_tokens"]
            steps = len(pieces) - 1
            counts = {"per_step_drafted": [depth] * steps, "per_step_accepted": [2] * steps}
            if mode == "drafts nothing":
                counts = {"num_spec_steps": 0}
            metrics = {"speculative_decoding": counts}
        self.event({"choices": [], "metrics": metrics})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, content: dict) -> None:
        self.wfile.write(f"data: {json.dumps(content)}\n\n".encode())
        self.wfile.flush()

    def answer(self, status: int, content: object) -> None:
        self.send(status, json.dumps(content).encode())

    def send(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


if mode != "hangs":
    http.server.ThreadingHTTPServer((arguments["host"], int(arguments["port"])), Handler).serve_forever()
child.wait()
