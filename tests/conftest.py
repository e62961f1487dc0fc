"""What tests of several files start from, which of them are quick, and the ways to run all of them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from run_cases import bars

import tapmachine
from tapmachine.tables import slabs

# Processes that tests start import the same package as the tests do, whatever folder they start in.
_paths = [str(Path(tapmachine.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
os.environ["PYTHONPATH"] = os.pathsep.join(_paths)

# As on processors and in programs that take numbers below the smallest normal one for 0.
if os.environ.get("TAPMACHINE_TEST_FLUSH_DENORMALS") == "1" and not torch.set_flush_denormal(True):
    raise pytest.UsageError("TAPMACHINE_TEST_FLUSH_DENORMALS: this processor cannot flush denormal numbers to zero")

# Left out of `make quick`: what takes more than a second or two, starts other processes or executes the documentation.
# Of every other test the quick ones are its first case, so that a new test is one of them without being listed.
LONG = {
    "test_chains": {
        "chains_of_other_units_have_the_models_moments",
    },
    "test_countable": {
        "counts_are_trained",
        "counts_are_trained_by_default_by_chains",
        "counts_through_the_estimator",
        "estimators_where_nothing_can_be_enumerated",
    },
    "test_damaged_runs": {
        "swapped_checkpoints",
    },
    "test_deep": {
        "a_run_goes_on_in_every_stage",
        "doubling_in_other_units_of_measurement",
        "gradients_against_differences",
        "layers_of_no_use_are_told_of",
        "likelihoods_of_a_deep_machine_by_three_estimators",
        "pretraining",
        "the_command_line",
        "training_lifts_the_likelihood",
    },
    "test_disk": {
        "a_run_goes_on_with_the_same_shards_only",
    },
    "test_distributed": {
        "a_killed_process_ends_the_run_which_can_go_on",
        "another_number_of_processes_goes_on",
        "landscape_and_annealing_are_divided",
        "two_processes_on_one_device_train_as_one",
        "two_processes_train_as_one",
    },
    "test_estimator": {
        "an_interval_wider_than_the_data",
        "categories",
        "features_and_back",
        "samples",
        "the_scale_of_the_data_does_not_matter",
        "units_of_measurement_do_not_matter",
    },
    "test_experiments": {
        "every_figure_in_its_quick_form",
        "what_several_jobs_run_is_there",
    },
    "test_factor_analysis": {
        "binary_visible_units_learn_with_gaussian_hidden_ones",
        "bits_that_always_agree_do_not_make_weights_grow_without_bounds",
        "from_the_command_line_by_defaults",
        "it_is_as_likely_as_scikit_learn_s_factor_analysis",
        "small_weights_that_are_kept_grow",
    },
    "test_files": {
        "another_process_on_another_device_finds_the_same_free_energies",
    },
    "test_landscape": {
        "groups_of_crowded_points",
        "maps_of_solutions_by_all_layers",
    },
    "test_likelihood": {
        "a_comparison_warns_when_annealing_misses_a_mode",
        "a_machine_on_half_lines_without_a_partition_function",
        "an_adaptive_schedule_lets_the_weights_scatter_less",
        "both_of_two_modes_are_found",
        "error_bars_are_those_of_repeated_estimates",
        "reverse_runs_from_few_samples_have_larger_errors",
    },
    "test_message_passing": {
        "adaptive_tap_is_closer_where_couplings_are_correlated",
        "comparison",
        "the_better_scheme_is_better_on_average",
        "training_with_adaptive_tap",
    },
    "test_options": {
        "a_unit_type_is_a_class_and_a_line_in_the_registry",
    },
    "test_notebooks": {
        "showing_needs_no_matplotlib",
        "the_bar_in_a_kernel",
        "the_notebooks_run",
    },
    "test_page": {
        "a_real_pointer_and_clicks_that_pin",
        "every_kind_of_data_on_every_screen",
        "pointing_at_a_solution_shows_it",
        "two_runs_side_by_side",
    },
    "test_page_tables": {
        "labels_that_do_not_fit",
        "the_page_of_a_table",
    },
    "test_posterior": {
        "posterior_means_are_close_to_exact_ones",
        "real_values",
        "the_command_line_denoises_imputes_and_scores",
        "the_command_line_refuses_in_one_line",
        "the_estimator_denoises_and_imputes",
        "the_evidence_ranks_noise_as_the_exact_one_does",
        "the_noise_is_found",
    },
    "test_precision": {
        "a_setting_for_each_device_is_respected",
    },
    "test_project": {
        "importing_is_quick",
        "importing_is_quiet_and_has_no_side_effects",
        "the_documentation_runs",
        "the_documentations_commands_run",
    },
    "test_reliability": {
        "a_full_disk_is_one_line_on_the_command_line",
        "a_signal_is_answered_by_a_checkpoint",
        "a_write_that_fails_leaves_the_old_checkpoint",
        "of_two_processes_one_is_refused",
        "threads_and_batches_do_not_matter",
    },
    "test_runs": {
        "a_diverging_run_exits_with_4",
        "a_killed_run_ends_in_the_same_bits",
        "a_page_about_the_file_of_a_machine",
        "a_pretraining_stays_as_long_as_it_was",
        "a_report_on_what_are_no_images",
        "an_extended_run_that_is_killed_ends_in_the_same_bits",
        "an_interrupted_run_says_how_to_go_on",
        "data_of_any_scale_are_trained_as_well",
        "errors_are_one_line_and_exit_code_2",
        "the_demo",
        "values_that_do_not_fit_are_named_with_their_file",
    },
    "test_schemes": {
        "order_of_the_error_of_four_layers",
    },
    "test_scores": {
        "a_score_is_annealed_elsewhere_and_within_its_error",
        "history_has_log_likelihoods_without_being_verbose",
        "the_cheap_number_of_an_epoch_is_unbiased",
    },
    "test_selection": {
        "a_run_with_held_out_rows_stops_and_is_finished",
        "averages_vary_less_than_the_last_values",
        "many_hidden_units_for_few_rows_do_not_harm_much",
        "stopping_early_can_be_resumed",
    },
    "test_solve": {
        "steps_are_one_graph",
    },
    "test_training": {
        "a_divergence_goes_back_to_where_the_loss_was_finite",
        "a_divergence_is_taken_back_and_the_step_size_cut",
        "a_loss_and_its_gradient_are_one_graph",
        "centered_gradients_of_small_batches_are_on_average_those_of_all_data",
        "centered_training_of_other_units",
        "columns_that_are_constant_or_nearly_so",
        "constant_columns_and_equal_rows",
        "gradient_against_differences_of_solved_free_energies",
        "training_of_every_unit_type",
        "training_raises_the_exact_likelihood",
        "units_that_cannot_be_inverted_are_trained",
    },
    "test_units": {
        "any_truncated_gaussian_stays_in_range",
        "graphs_can_be_traced",
    },
}


def pytest_configure(config):
    """Hides GPUs from tests that are not about them: they hold for a CPU, on which the same numbers come every time."""
    if "gpu" not in (config.option.markexpr or "").replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    """Marks as quick the first case of every test, and every docstring, but for those that are long."""
    seen = set()
    for item in items:
        name = getattr(item, "originalname", None) or item.name
        test = (item.path, name)
        left_out = any(item.get_closest_marker(mark) for mark in ("slow", "gpu"))
        if left_out or test in seen or name.removeprefix("test_") in LONG.get(item.path.stem, ()):
            continue
        seen.add(test)
        item.add_marker(pytest.mark.quick)


@pytest.fixture
def quick_tables(monkeypatch):
    """Starts of real-valued tables are fitted less well, where a test is about something else."""
    monkeypatch.setattr(slabs, "MOST_STEPS", 80)


@pytest.fixture
def data(tmp_path):
    """The path of a file of rows."""
    path = tmp_path / "bars.npy"
    np.save(path, bars())
    return str(path)
