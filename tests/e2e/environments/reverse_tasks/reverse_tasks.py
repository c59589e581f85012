"""A taskset of verifiers.v1: reverse a word, in one turn or with the tools of a harness."""

import itertools

import verifiers.v1 as vf


class ReverseData(vf.TaskData):
    answer: str


class ReverseTask(vf.Task[ReverseData]):
    @vf.reward
    async def share_of_letters(self, trace: vf.Trace) -> float:
        """Share of the reply's characters that are letters of the answer."""
        reply = trace.last_reply
        return sum(letter in self.data.answer for letter in reply) / max(1, len(reply))

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class ReverseConfig(vf.TasksetConfig):
    num_words: int = 24


class ReverseTaskset(vf.Taskset[ReverseTask, ReverseConfig]):
    def load(self) -> list[ReverseTask]:
        words = ("".join(letters) for letters in itertools.permutations("abcd"))
        return [
            ReverseTask(ReverseData(idx=number, prompt=word, answer=word[::-1]), self.config.task)
            for number, word in enumerate(itertools.islice(words, self.config.num_words))
        ]


__all__ = ["ReverseTaskset"]
