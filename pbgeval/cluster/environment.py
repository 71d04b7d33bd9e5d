"""Environment variables -> this process's place in a group that a launcher started, or none: it is alone.

The innermost launcher decides: torchrun runs under srun, submitit's job in a shell of Slurm's, mpirun's daemons under
srun. A launcher of a single task starts no group: such a process starts local workers itself.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from attrs import frozen

from pbgeval.errors import LaunchError

Environment = Mapping[str, str]

TORCHRUN = "torchrun"
LOOPBACK = "127.0.0.1"

_NUMBERS_OF_HOSTS = re.compile(r"\[(\d+)(?:-\d+)?(?:,\d+(?:-\d+)?)*\]")
_DEFAULT_PORT = 29500  # torch's own
_FIRST_PORT, _NUM_PORTS = 20_000, 12_000  # below the ports that systems hand out to clients

# Read when torch is imported: a worker whose store has gone with another worker would print a hundred lines; the
# launcher says it in one.
_QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
# Read then, too: how often threads that wait for each other look before they sleep. By itself torch's OpenMP (libgomp)
# looks 300,000 times, milliseconds, and meanwhile those they wait for find no core where other programs run.
_SLEEP_SOON = {"GOMP_SPINCOUNT": "10000"}
_SAY_HOW_TO_WAIT = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@frozen
class GroupPlace:
    """Which worker of which group a process is, and where the group meets."""

    how: str  # the launcher, for messages
    rank_in_team: int
    size: int
    local_rank: int  # among the workers of this host
    address: str  # where worker 0 listens
    port: int
    has_store: bool = False  # the launcher listens there itself

    def __attrs_post_init__(self) -> None:
        if self.rank_in_team >= self.size:
            raise LaunchError(
                f"{self.how}: a group of {self.size} has no worker {self.rank_in_team}; check the launcher's variables"
            )
        if not 0 < self.port < 1 << 16:
            raise LaunchError(f"MASTER_PORT: expected a port from 1 to 65535, got {self.port}")


def variables_of_torch(environment: Environment, *, local_workers: bool) -> dict[str, str]:
    """Return what to add to an environment before torch is imported: what the user has said stays. Changes no number.

    Args:
        environment: of this process.
        local_workers: whether it is one, or starts some.
    """
    quiet = {name: value for name, value in _QUIET.items() if local_workers and name not in environment}
    return quiet | ({} if any(name in environment for name in _SAY_HOW_TO_WAIT) else _SLEEP_SOON)


def place_in_group(environment: Environment) -> GroupPlace | None:
    """Return the place that a launcher gave to the process with this environment, or None.

    Raises:
        LaunchError: variables that belong together are not all there, or are no sensible numbers.
    """
    places = (find(environment) for find in (_of_torchrun, _of_submitit, _of_open_mpi, _of_pmi, _of_srun))
    return next((place for place in places if place is not None), None)


def advice_on_restarts(environment: Environment) -> list[str]:
    """Return a line where torchrun would restart workers in a way that torch 2.13 cannot carry out."""
    restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or restarts == "0":
        return []
    return [
        f"torchrun may restart workers ({restarts} times), but its restarts may fail while they share its store; "
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun"
    ]


def _of_torchrun(environment: Environment) -> GroupPlace | None:
    """Read what torchrun and torch elastic set, or a user's own script."""
    if not _has_all(environment, "RANK", "WORLD_SIZE"):
        return None
    _has_all(environment, "RANK", "MASTER_ADDR", "MASTER_PORT")
    rank_in_team = _number(environment, "RANK")
    return GroupPlace(
        how=TORCHRUN,
        rank_in_team=rank_in_team,
        size=_number(environment, "WORLD_SIZE"),
        local_rank=_number(environment, "LOCAL_RANK", default=rank_in_team),
        address=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT"),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _of_submitit(environment: Environment) -> GroupPlace | None:
    """Read what submitit's local executor sets; its other jobs run under srun."""
    size = _number(environment, "SUBMITIT_LOCAL_NTASKS", default=1)
    if environment.get("SUBMITIT_EXECUTOR") != "local" or size == 1:
        return None
    return GroupPlace(
        how="submitit",
        rank_in_team=_number(environment, "SUBMITIT_LOCAL_GLOBALID"),
        size=size,
        local_rank=_number(environment, "SUBMITIT_LOCAL_LOCALID"),
        address=LOOPBACK,
        port=_port(environment, "submitit", environment.get("SUBMITIT_LOCAL_JOB_ID", "")),
    )


def _of_open_mpi(environment: Environment) -> GroupPlace | None:
    return _of_mpi(
        environment,
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid", ""),
    )


def _of_pmi(environment: Environment) -> GroupPlace | None:
    """Read what Hydra sets: the mpiexec of MPICH and Intel MPI; PALS has other names for local ranks."""
    # srun --mpi=pmi2 sets both; under mpiexec the step counts its daemons, one per host.
    if environment.get("PMI_SIZE") and environment.get("SLURM_STEP_NUM_TASKS") == environment["PMI_SIZE"]:
        return None
    local = (
        ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")
        if "MPI_LOCALRANKID" in environment
        else ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE")
    )
    return _of_mpi(environment, "mpiexec", "PMI_RANK", "PMI_SIZE", *local, environment.get("PMI_JOBID", ""))


def _of_mpi(
    environment: Environment, how: str, rank: str, size: str, local_rank: str, local_size: str, job: str
) -> GroupPlace | None:
    """Read the variables of these names. MPI tells its processes how many share a host, not where the others are."""
    if not _has_all(environment, rank, size) or _number(environment, size) == 1:
        return None
    address = environment.get("MASTER_ADDR", "")
    if not address:
        if _number(environment, local_size, default=0) != _number(environment, size):
            raise LaunchError(
                "MASTER_ADDR is not set; an MPI group on several hosts needs the host of worker 0: "
                "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=PORT"
            )
        address = LOOPBACK
    rank_in_team = _number(environment, rank)
    return GroupPlace(
        how=how,
        rank_in_team=rank_in_team,
        size=_number(environment, size),
        local_rank=_number(environment, local_rank, default=rank_in_team),
        address=address,
        port=_port(environment, how, job),
    )


def _of_srun(environment: Environment) -> GroupPlace | None:
    """Read what srun sets for the tasks of a step; scripts of sbatch and shells of salloc are no step of several."""
    size = _number(environment, "SLURM_STEP_NUM_TASKS", default=1)
    if size == 1:
        return None
    _has_all(environment, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST")
    rank_in_team = _number(environment, "SLURM_PROCID")
    step = f"{environment.get('SLURM_JOB_ID', '')}.{environment.get('SLURM_STEP_ID', '')}"
    return GroupPlace(
        how="srun",
        rank_in_team=rank_in_team,
        size=size,
        local_rank=_number(environment, "SLURM_LOCALID", default=rank_in_team),
        address=environment.get("MASTER_ADDR") or _first_host(environment["SLURM_STEP_NODELIST"]),
        port=_port(environment, "srun", step),
    )


def _first_host(node_list: str) -> str:
    """Return the first of `n[1-3,7]` or `a[01-02]b,c`, Slurm's short forms of lists of hosts."""
    firsts = _NUMBERS_OF_HOSTS.sub(r"\1", node_list)
    if not re.fullmatch(r"[^\[\],]+(,[^\[\],]+)*", firsts):
        raise LaunchError(
            f"SLURM_STEP_NODELIST: expected a list of hosts such as n[1-3,7], got {node_list!r}; "
            "set MASTER_ADDR to the host of worker 0"
        )
    return firsts.partition(",")[0]


def _port(environment: Environment, how: str, job: str) -> int:
    """Return the port given, or one that all workers of a job derive and that other jobs hardly share."""
    if environment.get("MASTER_PORT"):
        return _number(environment, "MASTER_PORT")
    return _DEFAULT_PORT if not job else _FIRST_PORT + zlib.crc32(f"{how} {job}".encode()) % _NUM_PORTS


def _has_all(environment: Environment, *names: str) -> bool:
    """Tell whether all of these are set rather than none."""
    there = [name for name in names if environment.get(name)]
    if there and len(there) < len(names):
        missing = ", ".join(name for name in names if name not in there)
        raise LaunchError(
            f"{missing} is not set in the environment, but {', '.join(there)} is; set all of them, or none to run alone"
        )
    return bool(there)


def _number(environment: Environment, name: str, default: int | None = None) -> int:
    text = environment.get(name, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise LaunchError(f"{name}: expected a whole number in the environment, got {text!r}; unset it to run alone")
    return int(text)


def check_workers(name: str, workers: int | None) -> None:
    """Refuse fewer than one process.

    Raises:
        LaunchError: there would be none.
    """
    if workers is not None and workers < 1:
        raise LaunchError(
            f"{name} {workers}: the number of processes must be at least 1; leave it out to use all cores"
        )
