"""`remat-codegen cache`: what was measured, shown and cleared; and files that are written whole or not at all."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from remat_codegen import RematError, api
from remat_codegen.cli.main import cli
from remat_codegen.profile import store
from remat_codegen.profile.cache import Cache, Measurement


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "user_cache_path", lambda name: tmp_path / name)
    return tmp_path / "remat-codegen"


def run(*words):
    return CliRunner().invoke(cli, ["cache", *words])


def test_nothing_is_there_at_first(folder):
    found = run("--json")
    assert json.loads(found.output) == {"folder": str(folder), "cleared": False, "entries": 0, "bytes": 0, "files": []}
    assert run("--clear").exit_code == 0 and not folder.exists()


def test_what_was_measured_is_shown_and_cleared(folder):
    for _ in range(2):
        cache = Cache("cpu")
        cache.put(Measurement("mm"), [1, 2, 3, 4])
        cache.put(Measurement("relu"), [5, 6, 7, 8])
        cache.save()
    (folder / "costs-torn.json").write_text("{")
    (folder / "costs-left.x.new").write_text("")
    (folder / "notes.txt").write_text("of somebody")
    found = json.loads(run("--json").output)
    assert found["entries"] == 2 and sorted(f["entries"] or 0 for f in found["files"]) == [0, 2]
    assert found["bytes"] == sum(p.stat().st_size for p in folder.glob("*.json"))
    shown = run()
    assert "folder" in shown.output and "entries  2" in shown.output and shown.exit_code == 0
    assert json.loads(run("--clear", "--json").output)["cleared"] and [p.name for p in folder.iterdir()] == ["notes.txt"]


def test_an_interrupted_write_leaves_nothing(folder, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(store.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write(folder / "costs-1.json", "{}")
    assert not list(folder.iterdir())


def test_what_was_measured_before_an_interruption_is_kept(folder, monkeypatch):
    def interrupted(bench):
        raise KeyboardInterrupt

    monkeypatch.setattr("remat_codegen.profile.measure.Bench.run", interrupted)  # after the loss
    with pytest.raises(KeyboardInterrupt):
        api.plan(nn.Linear(4, 4), torch.ones(2, 4), budget="100%", progress=False)
    assert [f.entries for f in store.files()] == [1]


def test_what_cannot_be_cleared_is_told_in_one_line(folder, monkeypatch):
    def refuse():
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store, "clear", refuse)
    found = run("--clear")
    assert isinstance(found.exception, (RematError, SystemExit)) and found.exit_code != 0
