"""Speed and memory of evaluation on this machine: what one reading of a text saves over reading it again and again."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from eval.cost import Size, cost
from eval.grid import grid, haystacks
from eval.perplexity import Measured, measure
from eval.plan import Document, Plan
from eval.protocols import PROTOCOLS
from eval.score import score
from eval.scorer import DEFAULT, Job, Scorer
from eval.stats import curve
from eval.store import Store
from eval.voice import in_bytes
from lab import LabError
from lab.bench.train import HEADS, LAYERS, VOCABULARY, WIDTH, allocator, machine, resident_peak, synchronise
from lab.model import LabConfig, LabModel

GIB = 2**30
EQUAL = [PROTOCOLS["equal"]]


def eval_speed(parts: Sequence[str]) -> Iterator[dict]:
    """A row for each claim of these parts, as they are measured.

    Times that are compared are of one run, in turns; `ratio` is of the clock on the wall, and `processor` the same of
    processor time, which other programs disturb less.
    """
    torch.set_flush_denormal(True)
    for part in parts:
        before = load()
        for row in PARTS[part]():
            said = {"date": date.today().isoformat(), "machine": machine(), "load": [before, load()], "part": part}
            yield said | row


def claim(said: str, measured: float, least: float | None = None, most: float | None = None, **more) -> dict:
    """What is claimed, and whether it holds here. One bound, `least` or `most`, or both."""
    ok = (least is None or measured >= least) and (most is None or measured <= most)
    return {"claim": said, "measured": measured, "least": least, "most": most, "ok": ok} | more


def bytewise(scheme: str = "rope", width: int = WIDTH, train_length: int = 512) -> LabModel:
    """A model of bytes with first weights: what it costs does not depend on what it has learned."""
    torch.manual_seed(0)
    sizes = {"width": width, "layers": LAYERS, "heads": HEADS}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LabConfig(vocab_size=VOCABULARY, train_length=train_length, positional=scheme, **sizes)
    return LabModel(config).eval().to(device)


def text(tokens: int, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(0))


class Clock:
    """Seconds on the wall and of the processor, added up."""

    def __init__(self):
        self.wall, self.processor, self.runs = 0.0, 0.0, False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self.runs:  # what is timed calls something that is timed
            yield
            return
        self.runs = True
        synchronise()
        wall, processor = time.perf_counter(), time.process_time()
        yield
        synchronise()
        self.wall += time.perf_counter() - wall
        self.processor += time.process_time() - processor
        self.runs = False


# One forward for all prefixes


def prefix(longest: int = 16384, count: int = 64, turns: int = 3) -> Iterator[dict]:
    """The loss of the first n tokens at `count` lengths, from one forward and from one for each, as scripts do."""
    model, document = bytewise(), Document("text", text(longest))
    lengths = [longest * (n + 1) // count for n in range(count)]
    plan = Plan([document], lengths, [PROTOCOLS["yarn-prefix"]], shared=True)
    once, each, others = Clock(), Clock(), []
    whole(model, document.ids[: lengths[0]])
    for turn in range(turns):
        with TemporaryDirectory() as folder, once():
            shared = measure(model, plan, store=Store(Path(folder)), identity="").sums("yarn-prefix")[0][0]
        with each():
            others += [whole(model, document.ids[:n]) for n in lengths[turn::turns]]
    order = [at for turn in range(turns) for at in range(turn, count, turns)]
    apart = float(np.abs(shared[order] - np.array(others)).max())
    yield compared(f"{count} prefixes to {longest}: × less time than a forward each", once, each, turns, least=15)
    yield claim("the two curves differ by at most, nats", apart, most=1e-5)


@torch.no_grad()
def whole(model: nn.Module, ids: Tensor) -> float:
    """The mean loss of all tokens but the first: one forward, and the model's own loss."""
    ids = ids[None].to(model.device)
    return float(model(input_ids=ids, labels=ids).loss)


def compared(said: str, quick: Clock, slow: Clock, turns: int = 1, least: float | None = None, **more) -> dict:
    """How many times the time of `quick`, of which there were so many turns, `slow` takes."""
    seconds = {"seconds": quick.wall / turns, "instead_of": slow.wall}
    return claim(
        said,
        turns * slow.wall / quick.wall,
        least=least,
        processor=turns * slow.processor / quick.processor,
        **seconds,
        **more,
    )


# The same targets at every length


def equal(longest: int = 16384, count: int = 8, times: int = 8, stride: int = 256) -> Iterator[dict]:
    """The equal-token curve over `count` lengths, each half the next, against windows that slide by `stride`.

    Of one document of times × longest tokens and one more, read to its end. The sliding windows score the same targets
    at the same lengths; where a length is below the stride, they lie end to end. They are too many to run all: see
    `estimate`, which is asked before and after the curve is made.
    """
    model, document = bytewise(), Document("text", text(times * longest + 1))
    lengths = [longest >> n for n in reversed(range(count))]
    plan = Plan([document], lengths, [replace(one, whole=True) for one in EQUAL], shared=True)
    targets = range(longest // 2 + 1, len(document.ids))
    slides = [sliding(document.ids, targets, length, stride) for length in lengths]
    size, quick, slow = Size.of(model), Clock(), Clock()
    run(model, slides[0][:1])
    taken = [estimate(model, size, jobs, 0) for jobs in slides]
    with TemporaryDirectory() as folder, quick():
        sums, counts = measure(model, plan, store=Store(Path(folder)), identity="").sums()
    taken += [estimate(model, size, jobs, 1) for jobs in slides]
    slow.wall, slow.processor = (sum(each) / 2 for each in zip(*taken, strict=True))
    predicted = sum(flops(size, jobs) for jobs in slides) / cost(size, plan.runs(document), DEFAULT).flops
    said = f"{count} lengths to {longest}, {len(targets)} targets: × less time than windows {stride} apart"
    row = compared(said, quick, slow, least=20, lengths=lengths, curve=(sums / counts)[0].tolist())
    yield row
    off = {"processor": row["processor"] / predicted, "predicted": predicted}
    yield claim("that ratio ÷ the ratio of the FLOPs of the plans", row["measured"] / predicted, 0.7, 1.3, **off)


def sliding(ids: Tensor, targets: range, length: int, stride: int) -> list[Job]:
    """Windows that score these targets, moving by `stride` or by their length: each target once."""
    jobs, step = [], min(stride, length)
    for first in range(targets.start, targets.stop, step):
        last = min(first + step, targets.stop) - 1
        start = max(0, last - length)
        jobs.append(Job(ids[start : last + 1], first - 1 - start))
    return jobs


def estimate(model: nn.Module, size: Size, jobs: list[Job], turn: int) -> tuple[float, float]:
    """Seconds on the wall and of the processor that these windows take: those of one full batch, another each turn, and
    of the others as their FLOPs. All are alike, but for the first, which the start of the text cuts short."""
    batch = max(1, DEFAULT.tokens // jobs[-1].length)
    end = max(batch, len(jobs) - turn * batch)
    part, once = jobs[end - batch : end], Clock()
    with once():
        run(model, part)
    times = flops(size, jobs) / flops(size, part)
    return once.wall * times, once.processor * times


def flops(size: Size, jobs: list[Job]) -> float:
    return sum(size.flops(job.length, job.length - job.first) for job in jobs)


def run(model: nn.Module, jobs: list[Job]) -> list[tuple[int, Tensor]]:
    return list(Scorer(model).losses(jobs))


# Logits in chunks


def memory(tokens: int = 32768, vocabulary: int = 128256, layers: int = 2, width: int = 64) -> Iterator[dict]:
    """The most that scoring holds beside the model, in a process of its own."""
    code = f"from lab.bench.evaluation import hold; hold({tokens}, {vocabulary}, {layers}, {width})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=allocator())
    held, mean = done.stdout.split()[-2:]
    said = (
        f"{tokens} tokens of {vocabulary} words: GiB above the model (all logits: {4 * tokens * vocabulary / GIB:.1f})"
    )
    yield claim(said, int(held) / GIB, most=1.0, loss=float(mean))


def hold(tokens: int, vocabulary: int, layers: int, width: int) -> None:
    """What `memory` runs: prints the bytes above those held before, and the mean loss."""
    torch.manual_seed(0)
    config = LabConfig(vocab_size=vocabulary, width=width, layers=layers, heads=HEADS, train_length=512)
    model = LabModel(config).eval().to("cuda" if torch.cuda.is_available() else "cpu")
    ids = text(tokens + 1, vocabulary).to(model.device)[None]
    score(model, ids[:, :64], ids[:, 1:65])  # threads, kernels and libraries are there before anything is counted
    before = held()
    losses = score(model, ids[:, :-1], ids[:, 1:])
    after = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident_peak()
    print(after - before, float(losses.mean()))


def held() -> int:
    """Bytes held now: from here, a peak that was before the measurement can only make it look worse."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    try:
        with open("/proc/self/status") as file:
            return 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    except (OSError, StopIteration):
        return resident_peak()


# The grid


def needles(
    lengths: Sequence[int] = (256, 512, 1024, 2048, 4096, 8192), depths: int = 11, width: int = 128, turns: int = 3
) -> Iterator[dict]:
    """The depth × length grid from one reading a length, against a forward for each cell."""
    stacks = haystacks(lengths, np.linspace(0, 1, depths).tolist(), voice=in_bytes())
    for scheme in ("rope", "alibi"):
        model = bytewise(scheme, width)
        taught(model, stacks[0])
        for fast in (True, False):
            list(grid(model, stacks[:1], prefix_consistent=fast))
        once, each = Clock(), Clock()
        found, naive = [], []
        for turn in range(turns):
            with once():
                found = list(grid(model, stacks))
            with each():
                naive += list(grid(model, stacks[turn::turns], prefix_consistent=False))
        naive = {id(one.sample): one for one in naive}
        other = [one.right != naive[id(one.sample)].right for one in found]
        hits = sum(one.exact for one in found)
        apart = max(abs(one.nats - naive[id(one.sample)].nats) for one in found)
        said = f"{depths} × {len(lengths)} grid, {scheme}: × less time than a forward a cell"
        yield compared(said, once, each, turns, least=8)
        yield claim(
            f"cells of {len(found)} that hit or miss otherwise, {scheme}", sum(other), most=0, hits=hits, nats=apart
        )


def taught(model: LabModel, stack, steps: int = 60) -> None:
    """Let it learn some of the answers of one haystack by heart: then there are hits and misses to compare."""
    ids = torch.from_numpy(np.stack([sample.ids for sample in stack.samples[::2]])).to(model.device)
    adam = torch.optim.Adam(model.train().parameters(), 3e-3)
    for _ in range(steps):
        adam.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        adam.step()
    model.eval()


# The store


def store(
    lengths: Sequence[int] = (128, 256, 512, 1024, 2048), documents: int = 32, kept: int = 10**8, turns: int = 3
) -> Iterator[dict]:
    """What keeping losses adds to making them, and how long it takes to make a curve of so many that are kept."""
    model, keeping, everything = bytewise(width=128), Clock(), Clock()
    for _ in range(turns):
        watched = on(keeping, Plan, "key")(texts(documents, max(lengths)), list(lengths), EQUAL, shared=True)
        with TemporaryDirectory() as folder, everything():
            where = on(keeping, Store, "__init__", "get", "put", "read")(Path(folder))
            measure(model, watched, store=where, identity="a model").sums()
    share = keeping.wall / (everything.wall - keeping.wall)
    count = sum(watched.count(record, one) for record in watched.records() for one in watched.documents)
    processor = keeping.processor / (everything.processor - keeping.processor)
    yield claim(
        f"keeping {count} losses: share of the time it takes to make them", share, most=0.03, processor=processor
    )
    with TemporaryDirectory() as folder:
        yield reread(Path(folder), kept)


def reread(folder: Path, kept: int, longest: int = 16384, count: int = 8) -> dict:
    """Fill a store with so many losses, then time the way from opening it to a curve with intervals."""
    lengths = [longest >> n for n in reversed(range(count))]
    documents = -(-kept // (count * longest // 2))
    random, filled = np.random.default_rng(0), Store(folder)
    plan, true = Plan(texts(documents, longest), lengths, EQUAL), np.zeros(count)
    for one in plan.documents:
        losses = random.random((count, longest // 2), np.float32)
        true += losses.sum(1, dtype=np.float64)
        filled.put({plan.key("a model", one, record): x for record, x in zip(plan.records(), losses, strict=True)})
    forget(filled.data)
    size, clock = filled.data.stat().st_size, Clock()
    plan = Plan(texts(documents, longest), lengths, EQUAL)  # of which nothing is known yet
    with clock():
        sums, counts = Measured(plan, Store(folder), "a model").sums()
        made = curve(sums, counts)
    apart = float(np.abs(made.value - true / counts.sum(0)).max())
    said = f"{size // 4} kept losses of {documents} documents: seconds from the store to a curve"
    return claim(said, clock.wall, most=10, processor=clock.processor, bytes=size, apart=apart)


def texts(count: int, longest: int) -> list[Document]:
    """So many different documents, each a token on from the one before: they take the memory of one."""
    ids = text(longest + count)
    return [Document(f"text {n}", ids[n : n + longest + 1]) for n in range(count)]


def forget(path: Path) -> None:
    """Ask the system not to keep a file in memory, where it can be asked: it is then read from the disk."""
    if hasattr(os, "posix_fadvise"):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def on(clock: "Clock", kind: type, *names: str) -> type:
    """The same class, with these methods on a clock."""

    def timed(method: Callable) -> Callable:
        def call(*args, **how):
            with clock():
                return method(*args, **how)

        return call

    return type(kind.__name__, (kind,), {name: timed(getattr(kind, name)) for name in names})


PARTS: dict[str, Callable[..., Iterator[dict]]] = {
    "prefix": prefix,
    "equal": equal,
    "memory": memory,
    "grid": needles,
    "store": store,
}


def read_parts(said: str) -> list[str]:
    """Raises LabError for a part that there is not."""
    parts = [one.strip() for one in said.split(",")] if said != "all" else list(PARTS)
    if unknown := [one for one in parts if one not in PARTS]:
        raise LabError(f"bench eval has no part `{unknown[0]}`; there are {', '.join(PARTS)}", 2)
    return parts


def load() -> float | None:
    """How many programs wanted a processor in the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def show(rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("claim", "measured", "by processor time", "bound", "ok")
    for row in rows:
        bounds = [f"{sign} {row[name]:g}" for name, sign in (("least", "≥"), ("most", "≤")) if row[name] is not None]
        processor = f"{row['processor']:.3g}" if "processor" in row else ""
        table.add_row(
            row["claim"], f"{row['measured']:.3g}", processor, ", ".join(bounds), "yes" if row["ok"] else "NO"
        )
    console = Console()
    console.print(table)
    if rows:
        console.print(f"{rows[0]['machine']}; load {rows[0]['load'][0]} before, {rows[-1]['load'][1]} after")
