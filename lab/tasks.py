"""Tasks of a run: what it answers, at each length, to questions whose answers are known -> rows with intervals."""

from dataclasses import dataclass, replace

from accelerate import Accelerator

from eval.asked import Hits, Questions, Session, unanswered
from eval.entries import Asked
from eval.plan import Forward
from eval.store import Store
from lab import algorithmic
from lab.data import Corpus
from lab.mix import voice_for
from lab.rows import Row
from lab.settings import Run, tokens


def share(accelerator: Accelerator) -> slice:
    """What of a list of documents or samples falls to this process."""
    return slice(accelerator.process_index, None, accelerator.num_processes)


@dataclass(frozen=True)
class Answers:
    """What a scheme answers: its rows, and of each task the hits that they are made of."""

    rows: tuple[Row, ...] = ()
    hits: tuple[tuple[Asked, Hits], ...] = ()


class Tasks:
    """The tasks of `run.eval.tasks`, or the run's own where it was trained on problems."""

    def __init__(self, run: Run, text: Corpus, accelerator: Accelerator):
        self.run, self.accelerator = run, accelerator
        own = run.data.source == "algorithmic"
        given = [] if own else [Asked(**one.model_dump()) for one in run.eval.tasks]
        lengths = [tokens(length, run.train.length) for length in run.eval.lengths]
        # Haystacks come from texts that the model was not trained on.
        voice = voice_for(run.data.tokenizer, text.held_out.ids) if given else None
        self.questions = Questions(given, lengths, voice)
        self.tasks = self.questions.tasks

    @property
    def asks(self) -> bool:
        return bool(self.tasks)

    def session(self, model, identity: str) -> Session:
        """With the scheme that is in the model."""
        store = Store(self.run.path / "losses", self.accelerator.process_index)
        return Session(self.questions, store, identity, model.scheme.limit)

    def runs(self, model, identity: str) -> list[Forward]:
        """The forward passes that are still to come."""
        session = self.session(model, identity)
        return session.runs(session.missing(), model.scheme.prefix_consistent)

    def answers(self, blank: Row, model, identity: str) -> Answers:
        if self.run.data.source == "algorithmic":
            return Answers(tuple(algorithmic.rows_of(blank, self.run, model)))
        if not self.asks:
            return Answers()
        session = self.session(model, identity)
        session.ask(
            model,
            prefix_consistent=model.scheme.prefix_consistent,
            batch_tokens=self.run.eval.batch_tokens,
            mine=share(self.accelerator),
            meet=self.accelerator.wait_for_everyone,
        )
        rows = tuple(replace(blank, **vars(point)) for point in session.points())
        return Answers(rows, tuple((asked, session.hits(asked)) for asked in self.tasks))

    def unmeasured(self, blank: Row, note: str) -> Answers:
        """Rows without values, of a scheme that cannot be measured."""
        if self.run.data.source == "algorithmic":
            return Answers(tuple(algorithmic.unmeasured(blank, self.run, note)))
        return Answers(
            tuple(
                replace(blank, **vars(unanswered(asked, length, note)))
                for asked in self.tasks
                for length in self.questions.lengths
            )
        )
