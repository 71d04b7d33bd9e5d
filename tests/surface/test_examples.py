"""What comes with the package to be copied: `kgeval-dist demo` and `kgeval-dist template`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import pbgeval
from pbgeval.examples.files import DEMO_GRAPH, TEMPLATES
from tests.kit.commands import REPOSITORY, run_main


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_printed_as_it_is(name: str, tmp_path: Path) -> None:
    assert run_main("template", name, cwd=tmp_path).printed == TEMPLATES[name].path.read_text(encoding="utf-8")


def test_templates_are_listed_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    listed = run_main("template", cwd=tmp_path).printed.splitlines()

    assert [line.split()[0] for line in listed] == list(TEMPLATES)
    assert {path.name for path in TEMPLATES["slurm"].path.parent.iterdir()} <= {
        of.path.name for of in TEMPLATES.values()
    }
    fault = run_main("template", "pbs", cwd=tmp_path).fault
    assert fault.startswith("no template is named 'pbs'; expected one of slurm, ")


def test_the_plain_kubernetes_job_runs_the_command_of_the_image(tmp_path: Path) -> None:
    job = yaml.safe_load(TEMPLATES["kubernetes"].text)
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]

    assert (job["apiVersion"], job["kind"], pod["restartPolicy"]) == ("batch/v1", "Job", "Never")
    assert job["spec"].keys() == {"backoffLimit", "podFailurePolicy", "template"}
    assert [mount["name"] for mount in container["volumeMounts"]] == [of["name"] for of in pod["volumes"]]
    assert "command" not in container, "the image's entry point is kgeval-dist"
    user = f"USER {pod['securityContext']['runAsUser']}\n"
    assert all(user in path.read_text(encoding="utf-8") for path in (REPOSITORY / "docker").glob("*.Dockerfile"))
    done = run_main(*container["args"], cwd=tmp_path)
    assert (done.status, done.err) == (1, "/data/eval.py: no such config file\n")


def test_files_of_the_demo_are_written_once(tmp_path: Path) -> None:
    (tmp_path / "eval.py").write_text("mine", encoding="utf-8")

    assert run_main("demo", ".", "--only-files", cwd=tmp_path).printed == ""

    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in DEMO_GRAPH.iterdir() if path.is_file()}
    assert (tmp_path / "eval.py").read_text(encoding="utf-8") == "mine"
    assert (tmp_path / "train.tsv.gz").read_bytes() == (DEMO_GRAPH / "train.tsv.gz").read_bytes()


def test_a_folder_with_other_files_is_no_demo(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("", encoding="utf-8")
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "import.json").write_text("{}", encoding="utf-8")

    assert run_main("demo", ".", "--quiet", cwd=tmp_path).fault.endswith("choose a new or empty one")
    assert run_main("demo", "graph", "--quiet", cwd=tmp_path).fault.endswith("choose a new or empty one")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["graph", "import.json", "mine"]


def test_dir_lists_the_public_names() -> None:
    assert dir(pbgeval) == sorted(pbgeval.__all__)
