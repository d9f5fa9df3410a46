"""Every public report of queues, IRQs and XDP gone wrong (../shared/field-reports.md, second table) has its tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
REPORTS = Path(__file__).resolve().parents[3] / "shared/field-reports.md"

# Number of the report -> the tests that hold what the program does about that kind of fault.
TESTED = {
    1: (
        "unit/test_control_irq.py::test_managed_interrupts_are_told_once_and_rps_is_used",
        "unit/test_control_actuators.py::test_each_refusal_of_an_affinity_has_its_meaning",
        "unit/test_doctor_host.py::test_managed_interrupts_are_known_without_writing",
    ),
    2: ("unit/test_control_irq.py::test_a_cpu_without_free_vectors_is_passed_over",),
    3: (
        "unit/test_control_actuators.py::test_a_read_only_procfs_is_found_at_the_start",
        "unit/test_doctor.py::test_protect_kernel_tunables_is_found",
        "kernel/test_bad_input_host.py::test_a_read_only_sys_is_said_at_start",
    ),
    4: (
        "unit/test_control_controller.py::test_a_value_changed_by_somebody_else_is_left_to_them",
        "unit/test_control_controller.py::test_a_conflict_names_who_runs_that_sets_such_things",
        "unit/test_doctor.py::test_irqbalance_is_named_with_its_pid",
        "unit/test_doctor_host.py::test_irqbalance_that_leaves_irqs_alone",
    ),
    5: (
        "unit/test_control_irq.py::test_managed_interrupts_are_told_once_and_rps_is_used",
        "unit/test_control_controller.py::test_a_refused_change_takes_the_whole_plan_back",
    ),
    6: (
        "unit/test_host_model.py::test_one_vector_for_two_queues_is_one_irq",
        "unit/test_control_irq.py::test_an_interrupt_for_two_queues_moves_both_at_once",
    ),
    7: (
        "unit/test_host_irqnames.py::test_receive_queues_of_known_drivers",
        "unit/test_host_irqnames.py::test_transmit_halves_are_split_from_receive",
        "unit/test_host_model.py::test_netlink_goes_before_names",
    ),
    8: (
        "unit/test_host_model.py::test_bond_and_vlan_resolve_to_leaves",
        "unit/test_doctor.py::test_bond_is_checked_by_its_leaves",
        "kernel/test_doctor_interface.py::test_stacked_interface_is_checked_by_what_is_below",
    ),
    9: (
        "unit/test_host_model.py::test_a_host_without_topology_still_reads",
        "unit/test_doctor_host.py::test_host_without_topology_is_told",
        "unit/test_control_controller.py::test_a_balanced_host_is_left_alone",
    ),
    10: (
        "unit/test_control_controller.py::test_what_makes_it_worse_is_undone_at_once",
        "unit/test_control_guard.py::test_much_worse_is_undone_early",
    ),
    11: (
        "unit/test_host_model.py::test_isolated_and_offline_cpus_are_not_usable",
        "unit/test_host_model.py::test_cpus_follow_the_files",
        "unit/test_host_interrupts.py::test_offline_cpus_have_no_column",
        "kernel/test_ffi_rings.py::test_a_cpu_that_comes_back_loses_no_record",
    ),
    12: (
        "kernel/test_capture_stress.py::test_losses_are_exact_under_load",
        "kernel/test_ffi_rings.py::test_produced_is_drained_plus_lost",
    ),
    13: (
        "kernel/test_ffi_attach.py::test_a_refused_mtu_is_named",
        "kernel/test_bad_input_interface.py::test_a_frags_refusal_names_the_mtu",
        "kernel/test_doctor_interface.py::test_down_and_jumbo",
    ),
    14: (
        "kernel/test_others_attached.py::test_a_taken_xdp_slot_is_never_forced",
        "kernel/test_others_attached.py::test_auto_leaves_a_taken_xdp_slot_alone",
        "unit/test_hooks.py::test_a_taken_slot_sends_auto_to_tc_and_names_the_owner",
    ),
    15: (
        "kernel/test_others_pins.py::test_a_run_takes_over",
        "kernel/test_ffi_attach.py::test_a_killed_process_leaves_nothing_attached",
        "kernel/test_others_clsact.py::test_a_killed_runs_filters_block_the_next_until_restored",
    ),
    16: (
        "unit/test_doctor.py::test_btf",
        "unit/test_doctor.py::test_lockdown",
        "unit/test_doctor.py::test_memlock_is_not_blamed_on_new_kernels",
        "unit/test_ffi_failures.py::test_the_memlock_advice_is_dropped",
    ),
    17: (
        "unit/test_control_coalesce.py::test_a_driver_that_accepts_without_effect_is_found_out",
        "unit/test_control_coalesce.py::test_a_value_that_the_driver_rounds_is_not_taken_for_done",
        "kernel/test_coalescing.py::test_only_what_the_driver_has_is_told_and_set",
        "unit/test_doctor_host.py::test_coalescing_is_told_with_what_it_adds",
    ),
    18: (
        "unit/test_doctor_host.py::test_napi_deferral_is_told",
        "kernel/test_run_modes.py::test_a_run_leaves_napi_deferral_alone",
    ),
    19: (
        "unit/test_control_actuators.py::test_xps_of_a_one_queue_device_is_no_lever",
        "kernel/test_control_settings.py::test_a_one_queue_device_has_no_xps_lever",
    ),
    20: ("unit/test_control_actuators.py::test_rps_without_a_housekeeping_cpu_asks_for_another",),
}


@pytest.mark.parametrize("number", TESTED)
def test_the_tests_of_a_report_are_there(number: int) -> None:
    """A test that is renamed or removed is missed here."""
    for name in TESTED[number]:
        path, _, function = name.partition("::")
        assert f"def {function}(" in (TESTS / path).read_text(), name


@pytest.mark.skipif(not REPORTS.is_file(), reason="needs ../shared/field-reports.md")
def test_every_report_is_listed() -> None:
    """The second table's numbers, all of them."""
    table = REPORTS.read_text().partition("## Queues, IRQs, XDP")[2]
    assert {int(number) for number in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == set(TESTED)
