"""Options and words are declared once: the command line, settings files and `RBM` have the same ones."""

import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
import typer
from unit_cases import CASES

from tapmachine import RBM, fit, load, rbm, save, units
from tapmachine.analysis.schemes import SCHEMES, _usual_schemes
from tapmachine.apps.cli import app
from tapmachine.apps.cli.common import with_default
from tapmachine.apps.cli.train import parameter
from tapmachine.apps.estimator.training import settings_of
from tapmachine.channels import Channel
from tapmachine.data.declarations import POSITIVE, default_in_words, from_text, option_of, setting
from tapmachine.data.errors import SettingsError
from tapmachine.runs.registry import CHANNELS, OBJECTIVES, make_objective
from tapmachine.runs.settings import Settings, read_settings
from tapmachine.tables.machine import make_machine
from tapmachine.training import Monitor, Objective, Trainer, TrainingOptions
from tapmachine.units import Binary, Spin
from tapmachine.units.registry import UNIT_TYPES, hidden_words, visible_words, word_for

FIELDS = {declared.name: declared for declared in fields(Settings)}
TRAIN = {param.name: param for param in typer.main.get_command(app).commands["train"].params}
OTHER_OPTIONS = {"out", "settings", "device", "quiet", "as_json", "help"}  # of train: where and how, not what

# RBM has other names for these, as all estimators of scikit-learn do, …
RENAMED = {"hidden": "n_hidden", "seed": "random_state"}
# … and is without those that have no meaning there.
NOT_IN_RBM = {
    "data": "it is the argument of fit",
    "validation": "scikit-learn splits data itself",
    "weights": "they are an argument of fit, sample_weight",
    "early_stopping": "it requires held-out rows",
    "n_sweeps": "an argument of the objective, as in PCD(5)",
    "n_particles": "an argument of the objective, as in PCD(1, n_chains=200)",
    "momentum": "tapmachine.fit has it, for machine_",
    "centered": "tapmachine.fit has it, for machine_",
    "averaged": "tapmachine.fit has it, for machine_",
    "dtype": "tapmachine.fit takes machines of any data type",
    "measure_every": "of run directories",
    "save_every": "of run directories",
    "keep_every": "of run directories",
}
RBM_ONLY = {"device", "handle_unknown", "verbose"}


# ----- options


def test_settings_are_options_of_train_or_of_settings_files():
    on_shell = {name: declared for name, declared in FIELDS.items() if option_of(declared).on_shell}
    assert TRAIN.keys() - OTHER_OPTIONS == on_shell.keys()
    assert len(TRAIN.keys() - {"help"}) <= 25
    for name in FIELDS.keys() - on_shell.keys():
        assert name in TRAIN["settings"].help
    for name, declared in on_shell.items():
        option = option_of(declared)
        assert TRAIN[name].default is None, "a flag that is not given must not override a settings file"
        if name == "data":
            assert TRAIN[name].help == option.help_text()
        else:
            assert TRAIN[name].opts[0] == f"--{name.replace('_', '-')}"
            assert TRAIN[name].help == with_default(option.help_text(), default_in_words(declared))
            assert default_in_words(declared) != ""


def test_every_setting_is_a_parameter_of_the_estimator():
    parameters = dict(inspect.signature(RBM).parameters)
    expected = [RENAMED.get(name, name) for name in FIELDS if name not in NOT_IN_RBM]
    assert {*expected, *RBM_ONLY} == {*parameters}
    described = re.findall(r"^ {8}(\w+): ", RBM.__doc__.partition("Attributes:")[0], re.MULTILINE)
    assert described == [*parameters]
    for name in FIELDS.keys() - NOT_IN_RBM.keys() - RENAMED.keys():
        assert parameters[name].default == FIELDS[name].default, name
        words = option_of(FIELDS[name]).choices
        for word in () if words is None or name == "objective" else words():
            assert word in documented(name), f"{word} is not in the description of {name}"
    assert (parameters["n_hidden"].default,) == FIELDS["hidden"].default
    assert parameters["random_state"].default == FIELDS["seed"].default


def documented(name):
    """The description of a parameter of RBM."""
    text = " ".join(RBM.__doc__.split())
    return text.partition(f" {name}: ")[2].partition(" Attributes: ")[0][:400]


def test_the_estimator_passes_on_what_it_was_given():
    values = {
        "pretrain": 2, "hidden_units": "spin",
        "visible": "spin", "epochs": 3, "batch_size": 7, "objective": "tap",
        "learning_rate": 0.5, "decay": 0.25, "weight_decay": 0.125, "l1": 0.0625,
    }  # fmt: skip
    settings = settings_of(RBM((6, 3), random_state=11, **values), 3)
    assert {name: getattr(settings, name) for name in values} == values
    assert settings.hidden == (6, 3)
    real = settings_of(RBM(interval=(0, 2), visible="truncated-gaussian"), 1)
    assert real.interval == (0.0, 2.0)
    assert settings_of(RBM(binarize=0.5), 1).binarize == 0.5
    assert settings_of(RBM(columns={"a": "real"}), 1).columns is None  # they are those of a DataFrame, and act there
    assert {*values, "interval", "binarize", "columns", *RENAMED} == FIELDS.keys() - NOT_IN_RBM.keys(), (
        "each is tested here"
    )


def test_options_of_training_reach_the_step_as_one_object():
    x = torch.eye(4).repeat(10, 1)
    options = TrainingOptions(epochs=2, batch_size=10, learning_rate=0.1, l1=0.01, monitor=Monitor(n_starts=0))
    trainer = Trainer(rbm(Binary(4), Binary(2)), x, options, l1=0.5)
    assert (trainer.epochs, trainer.batches.batch_size, trainer.step.options.l1) == (2, 10, 0.5)
    machines = [rbm(Binary(4), Binary(2)) for _ in range(2)]
    fit(machines[0], x, options)
    fit(machines[1], x, **{f.name: getattr(options, f.name) for f in fields(options)})
    assert torch.equal(machines[0].weights[0], machines[1].weights[0])
    for declared in fields(TrainingOptions):
        assert f"        {declared.name}: {option_of(declared).help}" in TrainingOptions.__doc__


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epoch": 3}, TypeError, "there is no training option 'epoch'; did you mean 'epochs'?"),
        ({"options": {"epochs": 3}}, TypeError, "options is a dict; expected TrainingOptions"),
        ({"epochs": 2.5}, SettingsError, r"epochs is 2\.5; expected an integer"),
        ({"learning_rate": 0.0}, SettingsError, r"learning_rate is 0\.0; expected a finite positive number"),
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1)], 0.1), "momentum": 0.9},
            ValueError,
            "momentum cannot be combined",
        ),
    ],
)
def test_options_of_training_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        fit(rbm(Binary(4), Binary(2)), torch.eye(4), **options)


@dataclass(frozen=True)
class MoreSettings(Settings):
    """As docs/how_to_extend.md adds an option."""

    clip_norm: float | None = setting(None, "Largest norm of the gradient.", POSITIVE, default_text="unlimited")


def test_a_new_option_is_its_declaration():
    assert MoreSettings("digits", clip_norm=2.0).as_json()["clip_norm"] == 2.0
    assert MoreSettings("digits", clip_norm=2).digest() == MoreSettings("elsewhere", clip_norm=2.0).digest()
    with pytest.raises(SettingsError, match=r"clip_norm is -1\.0; expected a finite positive number"):
        MoreSettings("digits", clip_norm=-1.0)
    declared = fields(MoreSettings)[-1]
    option = parameter(declared, get_type_hints(MoreSettings)["clip_norm"])
    kind, info = get_args(option.annotation)
    assert (option.default, kind) == (None, float | None)
    assert (info.default, info.help) == ("--clip-norm", "Largest norm of the gradient (default: unlimited).")


@pytest.mark.parametrize("name", FIELDS)
def test_defaults_pass_their_own_checks_and_other_types_do_not(name, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({name: {}}))
    with pytest.raises(SettingsError, match=f"settings.json: {name} is {{}}; expected "):
        read_settings(file)
    default = FIELDS[name].default
    if default is not MISSING:
        file.write_text(json.dumps({name: default}))
        assert read_settings(file) == {name: default}


def test_words_of_the_command_line_become_values():
    hints = get_type_hints(Settings)
    for name, text, value in (
        ("hidden", "500,200", (500, 200)), ("interval", "0,1.5", (0.0, 1.5)), ("validation", "0.1", 0.1),
        ("validation", "rows.npy", "rows.npy"), ("visible", "spin", "spin"), ("epochs", 3, 3),
    ):  # fmt: skip
        assert from_text(name, text, hints[name]) == value
    with pytest.raises(SettingsError, match="hidden is '3,x'; expected one or more integers"):
        from_text("hidden", "3,x", hints["hidden"])


# ----- words

ROWS = torch.tensor([[0.0, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize("word", visible_words())
def test_every_visible_unit_type_can_be_asked_for_made_and_saved(word, tmp_path):
    assert word in TRAIN["visible"].help
    machine = make_machine(Settings("given", visible=word, hidden=(3,)), ROWS).machine
    units = machine.layers[0]
    assert word in ("auto", word_for(units))
    save(machine, tmp_path / "machine.safetensors")
    same = load(tmp_path / "machine.safetensors")
    assert type(same.layers[0]) is type(units)
    assert all(torch.equal(z, same.state_dict()[name]) for name, z in machine.state_dict().items())


@pytest.mark.parametrize("word", hidden_words())
def test_every_hidden_unit_type_can_be_asked_for_and_made(word):
    assert word in TRAIN["hidden_units"].help
    machine = make_machine(Settings("given", hidden=(3,), hidden_units=word), ROWS).machine
    assert word_for(machine.layers[1]) == ("binary" if word == "auto" else word)


@pytest.mark.parametrize("word", OBJECTIVES)
def test_every_objective_can_be_asked_for_and_takes_its_settings(word):
    assert word in TRAIN["objective"].help
    objective = make_objective(Settings("given", objective=word))
    if word == "default":
        assert objective is None
        return
    assert isinstance(objective, Objective)
    entry = OBJECTIVES[word]
    chosen = {"n_sweeps": 3, "n_particles": 7}
    made = make_objective(Settings("given", objective=word, **{name: chosen[name] for name in entry.arguments}))
    assert "3" in repr(made)
    if "n_particles" in entry.arguments:
        assert getattr(made, entry.arguments["n_particles"]) == 7
    for name in chosen.keys() - entry.arguments.keys():
        with pytest.raises(SettingsError, match=f"{name} cannot be used with objective '{word}'"):
            Settings("given", objective=word, **{name: chosen[name]})


def test_every_channel_is_one_of_the_command_lines():
    params = {param.name: param for param in typer.main.get_command(app).commands["denoise"].params}
    for word, entry in CHANNELS.items():
        assert word in params["channel"].help
        assert set(entry.parameters) <= set(params)
        channel = resolve_name(entry.home)(**dict.fromkeys(entry.parameters, 0.1))
        assert isinstance(channel, Channel)
        assert all(getattr(channel, parameter) == 0.1 for parameter in entry.parameters)


def test_every_scheme_is_compared():
    schemes = _usual_schemes(rbm(Binary(3), Spin(2)))
    assert [type(scheme) for scheme in schemes] == list(SCHEMES)


# ----- unit types


def test_every_unit_type_is_held_to_the_laws_and_public():
    classes = {type(case.simple()) for case in CASES}
    for unit_type in UNIT_TYPES.values():
        assert unit_type.load() in classes
        assert unit_type.load() is getattr(units, unit_type.load().__name__)
        assert unit_type.load().__name__ in units.__all__


A_NEW_UNIT_TYPE = """
from tapmachine.units.registry import UNIT_TYPES, UnitType
UNIT_TYPES["counts"] = UnitType("count_units:Counts", raw_bytes=True)  # the one line that the registry takes
from tapmachine.apps.cli import main
main()
"""


@pytest.mark.long
def test_a_unit_type_is_a_class_and_a_line_in_the_registry(tmp_path):
    """Its word is on the command line, bytes are its states, and its machines are saved and loaded."""
    rows = np.random.default_rng(0).poisson([[1, 6, 3], [5, 1, 3]] * 40, (80, 3)).astype(np.uint8)
    rows[0, 0] = 150  # beyond what is taken for the intensity of a pixel
    np.save(tmp_path / "counts.npy", rows)
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])

    def run(*words):
        command = [sys.executable, "-c", A_NEW_UNIT_TYPE, *words]
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = run("train", "counts.npy", "--visible", "counts", "--hidden", "2", "--epochs", "2", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert "counts, as specified" in done.stderr
    assert "warning" not in done.stderr
    assert "6" in run("sample", "run", "--count", "6", "--n-sweeps", "5", "--out", "drawn.npy").stdout
    drawn = np.load(tmp_path / "drawn.npy")
    assert drawn.shape == (6, 3)
    assert (drawn == drawn.round()).all()
    assert drawn.max() > 1
    assert "counts" in run("train", "--help").stdout
