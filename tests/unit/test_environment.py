"""What launchers put into the environment, and the place in a group that follows from it."""

from __future__ import annotations

import pytest

from pbgeval.cluster.environment import GroupPlace, advice_on_restarts, place_in_group
from pbgeval.errors import LaunchError
from tests.kit.refusals import fault_of

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "h0",
    "MASTER_PORT": "29600",
    "TORCHELASTIC_RUN_ID": "x",
}
BATCH_SCRIPT = {  # what a script of sbatch finds, and a shell of salloc
    "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}
STEP = BATCH_SCRIPT | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[08-09]",
    "SLURM_PROCID": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SUBMITIT = {
    "SUBMITIT_EXECUTOR": "local",
    "SUBMITIT_LOCAL_NTASKS": "2",
    "SUBMITIT_LOCAL_GLOBALID": "1",
    "SUBMITIT_LOCAL_LOCALID": "1",
    "SUBMITIT_LOCAL_JOB_ID": "4711",
}
MASTER = {"MASTER_ADDR": "h7", "MASTER_PORT": "1234"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (TORCHRUN, GroupPlace("torchrun", 3, 4, 1, "h0", 29600)),
        (STEP | MASTER, GroupPlace("srun", 2, 4, 0, "h7", 1234)),
        (OPEN_MPI | MASTER, GroupPlace("mpirun", 1, 2, 1, "h7", 1234)),
        (OPEN_MPI, GroupPlace("mpirun", 1, 2, 1, "127.0.0.1", 29500)),
        (HYDRA, GroupPlace("mpiexec", 1, 4, 1, "127.0.0.1", 29500)),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "1"} | MASTER,
            GroupPlace("mpiexec", 1, 4, 0, "h7", 1234),
        ),
        # The innermost launcher decides.
        (STEP | TORCHRUN, GroupPlace("torchrun", 3, 4, 1, "h0", 29600)),
        (STEP | OPEN_MPI | MASTER, GroupPlace("mpirun", 1, 2, 1, "h7", 1234)),
        (STEP | HYDRA | {"SLURM_STEP_NUM_TASKS": "2"} | MASTER, GroupPlace("mpiexec", 1, 4, 1, "h7", 1234)),
        (STEP | HYDRA | MASTER, GroupPlace("srun", 2, 4, 0, "h7", 1234)),  # srun --mpi=pmi2
    ],
)
def test_a_launchers_variables_say_which_worker_this_is(environment: dict[str, str], place: GroupPlace) -> None:
    assert place == place_in_group(environment)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        BATCH_SCRIPT,
        STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # srun --pty, salloc's interactive step
        OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1"},
        HYDRA | {"PMI_SIZE": "1"},
        SUBMITIT | {"SUBMITIT_LOCAL_NTASKS": "1"},
        SUBMITIT | {"SUBMITIT_EXECUTOR": "debug"},
        {"MASTER_ADDR": "h0", "MASTER_PORT": "1"},
    ],
)
def test_a_process_without_a_group_of_several_is_alone(environment: dict[str, str]) -> None:
    assert place_in_group(environment) is None


def test_jobs_and_steps_have_ports_of_their_own() -> None:
    places = [
        place_in_group(STEP | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        for job in range(5)
        for step in range(3)
    ]

    assert len({place.port for place in places if place is not None}) == 15


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set in the environment, but RANK is"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR, MASTER_PORT is not set in the environment, but RANK"),
        (TORCHRUN | {"RANK": "4"}, "torchrun: a group of 4 has no worker 4; check the launcher's variables"),
        (TORCHRUN | {"RANK": "-1"}, "RANK: expected a whole number in the environment, got '-1'"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "MASTER_PORT: expected a port from 1 to 65535, got 70000"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "many"}, "SLURM_STEP_NUM_TASKS: expected a whole number"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "SLURM_STEP_NODELIST is not set in the environment"),
        *(
            (STEP | {"SLURM_STEP_NODELIST": text}, "SLURM_STEP_NODELIST: expected a list of hosts")
            for text in ("n[1", "n[1-", "n[1-x]", "n1,", ",n1", "n]1[", "n[]")
        ),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set in the environment"),
        (
            OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
            "MASTER_ADDR is not set; an MPI group",
        ),
        (
            HYDRA | {"MPI_LOCALNRANKS": "2"},
            "MASTER_ADDR is not set; an MPI group",
        ),
        (SUBMITIT | {"SUBMITIT_LOCAL_GLOBALID": ""}, "SUBMITIT_LOCAL_GLOBALID: expected a whole number"),
    ],
)
def test_variables_that_make_no_sense_are_one_line(environment: dict[str, str], line: str) -> None:
    assert fault_of(lambda: place_in_group(environment), LaunchError).startswith(line)


RESTARTING = TORCHRUN | {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}


@pytest.mark.parametrize(
    ("environment", "is_told"),
    [
        (RESTARTING, True),
        (RESTARTING | {"TORCHELASTIC_MAX_RESTARTS": "0"}, False),
        (RESTARTING | {"TORCHELASTIC_USE_AGENT_STORE": "False"}, False),
        ({}, False),
    ],
)
def test_torchrun_that_would_restart_workers_with_its_own_store_is_told(
    environment: dict[str, str], is_told: bool
) -> None:
    advice = ["export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in line for line in advice_on_restarts(environment)]
    assert [True] * is_told == advice


def test_the_store_is_torchruns_where_its_agent_holds_one() -> None:
    of_torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    places = [place_in_group(of_torchrun | {"TORCHELASTIC_USE_AGENT_STORE": said}) for said in ("True", "False")]

    assert [place is not None and place.has_store for place in places] == [True, False]


@pytest.mark.parametrize(
    ("more", "meeting"),
    [
        ({}, ("srun", 2, 4, 0, "n08")),
        (SUBMITIT, ("submitit", 1, 2, 1, "127.0.0.1")),
        *(
            ({"SLURM_STEP_NODELIST": text}, ("srun", 2, 4, 0, first))
            for text, first in (
                ("n1", "n1"),
                ("n[1-3,7]", "n1"),
                ("a1,b[01-02]", "a1"),
                ("b[08-11],a", "b08"),
                ("rack[1-2]n[0,5]", "rack1n0"),
                ("gpu-[1-2]-ib.site", "gpu-1-ib.site"),
            )
        ),
    ],
)
def test_the_tasks_of_a_step_meet_at_the_first_host_of_its_list_and_local_ones_on_loopback(
    more: dict[str, str], meeting: tuple[str, int, int, int, str]
) -> None:
    place = place_in_group(STEP | more)

    assert place is not None
    assert meeting == (place.how, place.rank_in_team, place.size, place.local_rank, place.address)
    assert more or 20_000 <= place.port < 32_000
