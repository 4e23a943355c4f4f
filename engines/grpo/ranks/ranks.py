"""How the processes of one training run are started, and do the same work together.

Every rank is given the whole batch and the same calls in the same order, and adds up with the
others what each has computed. They are started by accelerate's own launcher, from a file of
`accelerate config`.
"""

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from engines.core.errors import ConfigError
from engines.core.frozen import frozen

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")


class UpdateCancelled(Exception):
    """Nobody waits for the result any more: raised on every rank."""


class Ranks:
    """A single process: what it has computed is all there is.

    A subclass joins several. Every call but `share` is then made by all of them.
    """

    rank = 0  # of this process
    size = 1
    lockstep = False  # every pass through the model must be made by all ranks at once

    def share(self, items: Sequence[T], rank: int | None = None) -> list[T]:
        """The items that this rank, or another, computes: each belongs to exactly one rank."""
        return list(items[self.rank if rank is None else rank :: self.size])

    def gather(self, tensor: "Tensor") -> "Tensor":
        """(ranks, …): the tensors of all ranks, the same on each of them."""
        return tensor[None]

    def together(self, method: str, *arguments: object) -> AbstractContextManager[None]:
        """Around what a method of rank 0's engine does: the others do it, too."""
        return nullcontext()

    def check_agreement(self, weights_digest: Callable[[], str]) -> None:
        """Raises PolicyError: on every rank, where one has other weights than rank 0."""


ALONE = Ranks()


@frozen
class LaunchRequest:
    """What accelerate was asked for; options before the file's fields, as accelerate has it."""

    options: Namespace  # of accelerate's launcher
    processes: int  # on all machines
    machines: int
    precision: str
    deepspeed: bool
    on_cpu: bool


def read_request(arguments: Sequence[str]) -> LaunchRequest:
    """Parse `--config_file FILE [accelerate's options] RUNFILE …` as accelerate does.

    Raises:
        ConfigError: accelerate cannot read the file.
        SystemExit: there is no such option.
    """
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils import DistributedType

    options = launch_command_parser().parse_args(list(arguments))
    place = str(options.config_file)
    if not Path(place).is_file():
        raise ConfigError(place, "there is no such file.", "Write it with `accelerate config`.")
    try:
        config = load_config_from_file(place)
        kind = config.distributed_type
        return LaunchRequest(
            options,
            processes=options.num_processes or config.num_processes,
            machines=options.num_machines or config.num_machines,
            precision=options.mixed_precision or config.mixed_precision or "no",
            deepspeed=options.use_deepspeed or kind == DistributedType.DEEPSPEED,
            on_cpu=options.cpu or config.use_cpu,
        )
    except Exception as error:  # ValueError, TypeError, KeyError, AttributeError, yaml's own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            place,
            f"accelerate cannot read it ({reason[:200]}).",
            "Write it with `accelerate config`.",
        ) from error


def start_processes(request: LaunchRequest, module: str) -> int:
    """Have a module run in every process of this machine; the exit code of the first that failed.

    Its arguments are those that follow accelerate's options.
    """
    from accelerate.commands.launch import launch_command
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    options = request.options
    options.training_script_args = [options.training_script, *options.training_script_args]
    options.training_script, options.module = module, True
    if request.on_cpu:  # which accelerate passes on to a single process only
        os.environ["ACCELERATE_USE_CPU"] = "true"
    try:
        launch_command(options)
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        return int(first.exitcode)
    return 0
