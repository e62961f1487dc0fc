"""Several processes that work together, forked from one that has imported torch: an import takes two seconds each."""

import multiprocessing
import os
import sys

import torch
from run_cases import PATIENCE
from torch.distributed import TCPStore

from tapmachine.apps.cli import main

# Not forks of the process that runs the tests: autograd's threads there would be missing in its forks. On other systems
# than Linux, forks after such imports are not safe or not possible.
FORKS = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
# Optimizers import torch._dynamo, which takes another second.
MODULES = ["torch.distributed.nn", "torch._dynamo", "safetensors.torch", "tapmachine.runs.training"]
FORKS.set_forkserver_preload(MODULES)


class Ranks:
    """Processes that run the same function, each with its rank in the environment, as torchrun starts them."""

    def __init__(self, folder, size, function, *arguments):
        self.errors = [folder / f"errors-{size}-{rank}.txt" for rank in range(size)]
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # where they meet
        agent = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port), "WORLD_SIZE": str(size)}
        agent |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        self.processes = []
        for rank, path in enumerate(self.errors):
            environment = agent | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            process = FORKS.Process(target=_begin, args=(environment, str(path), function, *map(str, arguments)))
            process.start()
            self.processes.append(process)

    @property
    def returncode(self):
        """Of the first that has ended with an error; 0 if all have ended without."""
        codes = [process.exitcode for process in self.processes]
        return next((code for code in codes if code), None if None in codes else 0)

    def poll(self):
        return self.returncode

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()

    def wait(self):
        """Waits for all; each has to end without an error."""
        for process, path in zip(self.processes, self.errors, strict=True):
            process.join(PATIENCE)
            assert process.exitcode == 0, path.read_text()[-2000:]


def _begin(environment, errors, function, *arguments):
    os.environ.update(environment)
    file = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    torch.set_num_threads(1)
    function(*arguments)


def command_line(*arguments):
    """The command line."""
    sys.argv = ["tapmachine", *arguments]
    main()


def script(text, *arguments):
    """A script with arguments."""
    sys.argv = ["script", *arguments]
    exec(text, {"__name__": "__main__"})
