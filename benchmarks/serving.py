"""How fast the server answers: requests per second, and how long a client waits.

  python -m benchmarks.serving RUN [RUN ...] --output=docs/results/serving.json

Starts `--mode=serve` on a free port of this machine for each run. Asks it for the labels of one text at a
time, and for its embedding, over connections that stay open: 1 and 64 clients at once, each of which
waits for its answer before it asks again: at most --requests in a round, and --seconds. The texts are the
run's test texts, in their order. The clients are one process, on the same cores as the server. Each figure is
the median of --rounds rounds, which take turns.
"""

import argparse
import asyncio
import itertools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

from benchmarks import children, flags
from xmc_jax import data

_ROOT = pathlib.Path(__file__).parents[1]
_CLIENTS = (1, 64)


def texts_of(workdir: pathlib.Path) -> list[str]:
  """Returns up to 2,000 test texts of a run."""
  test = data.load_prepared(workdir / "data").test
  return [test.texts[row] for row in range(min(2000, len(test)))]


def request_of(text: str, path: str, k: int) -> bytes:
  body = {"text": text, "k": k} if path == "/predict" else {"text": text}
  content = json.dumps(body).encode()
  head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
  return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def client(port: int, waiting, seconds: list[float], until: float) -> None:
  """Sends requests one after the other over one connection, until there are none or the time is over."""
  reader, writer = await asyncio.open_connection("127.0.0.1", port)
  try:
    for request in waiting:
      if time.perf_counter() > until:
        return
      start = time.perf_counter()
      writer.write(request)
      head = await reader.readuntil(b"\r\n\r\n")
      length = int(re.search(rb"content-length: (\d+)", head)[1])
      await reader.readexactly(length)
      if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode())
      seconds.append(time.perf_counter() - start)
  finally:
    writer.close()


async def measured(port: int, requests: list[bytes], clients: int, most: int, limit: float) -> dict:
  """Returns requests per second and milliseconds of the median and the slowest hundredth."""
  seconds: list[float] = []
  waiting = itertools.islice(itertools.cycle(requests), most)
  start = time.perf_counter()
  async with asyncio.TaskGroup() as group:
    for _ in range(clients):
      group.create_task(client(port, waiting, seconds, start + limit))
  took = time.perf_counter() - start
  ranked = sorted(seconds)
  return {
    "requests": len(ranked),
    "per_second": len(ranked) / took,
    "p50_ms": 1000 * ranked[len(ranked) // 2],
    "p99_ms": 1000 * ranked[min(len(ranked) - 1, int(0.99 * len(ranked)))],
  }


def started(workdir: pathlib.Path, *more: str) -> tuple[subprocess.Popen, int, float]:
  """Starts a server, with more flags; returns it, its port and the seconds until it was ready."""
  start = time.perf_counter()
  command = [sys.executable, "-m", "xmc_jax.main", "--mode=serve", f"--workdir={workdir}", "--port=0", *more]
  server = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
  line = server.stdout.readline()
  found = re.search(r"http://\S+:(\d+)", line)
  if not found:
    raise SystemExit(f"the server of {workdir} did not start: {line}")
  return server, int(found[1]), time.perf_counter() - start


def of_run(workdir: pathlib.Path, given: argparse.Namespace) -> dict:
  """Measures all numbers of clients on one run, in turns."""
  texts = texts_of(workdir)
  server, port, ready = started(workdir)
  try:
    rows: dict[tuple[str, int], list[dict]] = {}
    for number in range(1 + given.rounds):
      for path, clients in itertools.product(("/predict", "/embed"), _CLIENTS):
        requests = [request_of(text, path, given.k) for text in texts]
        before = cpu_seconds(server.pid)
        row = asyncio.run(measured(port, requests, clients, given.requests, given.seconds))
        row["cpu_ms"] = 1000 * (cpu_seconds(server.pid) - before) / row["requests"]
        if number:  # the first round warms up
          rows.setdefault((path, clients), []).append(row)
    memory = children.peak_bytes(server.pid)
  finally:
    server.send_signal(signal.SIGTERM)
    code = server.wait(timeout=60)
  summary = [
    {
      "path": path,
      "clients": clients,
      **{key: round(statistics.median(row[key] for row in found), 2) for key in found[0]},
    }
    for (path, clients), found in rows.items()
  ]
  about = {"run": workdir.name, "ready_seconds": ready, "exit_code": code, "peak_bytes": memory}
  return {**about, "rows": summary}


def cpu_seconds(pid: int) -> float:
  """Returns a process's CPU time so far, from Linux's /proc; other work on the machine hardly changes it."""
  fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
  return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
  given = flags.parse(
    __doc__, folders="runs", rounds=5, requests=2000, seconds=10.0, k=5, output=pathlib.Path
  )
  found = []
  for workdir in given.runs:
    found.append(of_run(workdir, given))
    print(f"{workdir.name}: ready after {found[-1]['ready_seconds']:.1f} s")
    for row in found[-1]["rows"]:
      print(f"  {json.dumps(row)}", flush=True)
  if given.output:
    settings = {key: getattr(given, key) for key in ("rounds", "requests", "seconds", "k")}
    content = {"machine": children.machine(), **settings, "runs": found}
    given.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
  main()
