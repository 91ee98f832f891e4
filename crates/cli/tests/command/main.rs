//! The command `tilewright`: every subcommand, bad input, interruptions, what compilers make of kernels, and the project's pages.

mod bad_input;
mod commands;
mod common;
mod documents;
mod edited;
#[cfg(unix)]
mod fleet;
#[path = "documents/gpu_blocks.rs"]
mod gpu_blocks;
mod inspect;
#[cfg(unix)]
mod launchers;
mod memory;
#[cfg(unix)]
mod nodes;
mod onnx;
#[path = "../../../ir/tests/support/pages.rs"]
mod pages;
#[path = "documents/printed.rs"]
mod printed;
#[cfg(unix)]
mod recipes;
mod reference;
mod resume;
mod selfcheck;
mod small_model;
mod wave_units;
#[macro_use]
#[path = "../../../ir/tests/support/waits.rs"]
mod waits;

fn main() {
    let tests = tests! {
        documents:
            shell_blocks_run
            packages_tests_and_scripts_exist
            links_and_images_resolve
            the_notebook_lists_its_entries
            names_that_do_not_exist_are_found
            pages_keep_their_sizes
            the_package_page_stands_alone
            lines_are_run_or_named
            the_library_compiles_rust_blocks
            anchors_are_those_of_github
            guides_name_no_plan_keys
        ;
        gpu_blocks:
            gpu_blocks_run_up_to_the_device
        ;
        printed:
            shortened_lines_keep_their_order
            the_loop_of_the_readme_is_emitted
            the_refusal_of_the_guide_is_printed
            pictures_of_plans_are_drawn_today
        ;
        wave_units:
            mfma_on_amd
            mma_on_nvidia
        ;
        commands:
            epilogues_on_every_command
            emitted_sources_look_like_their_language
            ieee_leaves_out_plans_that_break_it
            types_and_functions_have_their_users_names
            ranges_of_sizes_and_tables
            a_comparison_with_a_library_is_told_recorded_and_drawn
            explain_in_words_numbers_and_pictures
            host_code_beside_the_kernels
            options_before_the_problem_mean_the_same_as_after_it
            parts_of_a_file_and_their_records
            helps_are_short_and_begin_with_examples
            geometry_strings_and_verify
            large_problems_are_verified_reduced_on_the_emulator
            explain_tells_a_matrix_units_roles_and_fragments
            the_sample_of_a_case_file_runs
            complex_products_take_complex_factors
            explain_is_the_text_of_the_library
            steps_are_printed_where_wanted
            a_bundle_of_recorded_shapes
            a_forged_record_does_not_win
            records_of_empty_reductions_and_of_strange_rows
            pinned_keys_stay
            help_teaches_with_examples
            records_travel
            tuning_tells_everything_as_json
            a_first_tuned_kernel
            bench_times_several_cases_and_ends_with_their_mean
            shells_are_given_completions
            the_cache_of_binaries_is_listed_and_cleared
            devices_are_listed_with_what_is_missing
        ;
        reference:
            fields_of_problems_are_those_of_the_page
            fields_of_other_objects_are_those_of_the_page
        ;
        resume:
            an_interrupt_ends_a_search_on_opencl
            a_termination_ends_a_search_on_opencl
            an_interrupt_keeps_what_was_found
            told_twice_to_end_it_excludes_nothing
            a_crash_is_noted_and_a_kill_is_not
            killed_tuning_goes_on_from_its_trials
            export_ends_quietly_when_its_reader_has_gone
        ;
        #[cfg(unix)]
        fleet:
            nodes_share_a_run_and_its_trials_are_collected
            the_best_of_an_earlier_holder_are_timed_again
            the_guide_for_a_cluster_runs
            rows_that_cannot_be_true_are_refused_by_name
            added_cases_are_tuned_by_workers_with_the_earlier_list
            a_worker_that_dies_is_replaced_and_one_without_a_parent_ends
            failed_tasks_are_told_by_the_exit_code
            trouble_of_a_host_fails_no_problem
            commands_take_turns_on_a_device_that_is_timed
            failed_tasks_are_shown_with_their_reasons
            a_page_of_a_run_that_is_watched_shows_itself_again
            several_devices_of_a_host_share_the_problems
            commands_in_two_containers_have_tasks_of_their_own
            two_workers_try_what_one_tries
            a_worker_of_a_fleet_has_the_bar_of_all_problems
            a_named_run_of_a_host_goes_on_where_it_stood
            a_fleet_of_one_makes_the_trials_of_plain_tune
            wrong_input_is_named_and_no_password_is_shown
            workers_of_a_terminal_have_bars
        ;
        #[cfg(unix)]
        nodes:
            a_plan_that_takes_nodes_down_is_recorded_as_hung
            a_node_that_is_told_to_end_gives_its_task_back
            a_live_run_is_seen_and_withdrawn
            all_devices_of_a_host_share_the_problems
        ;
        bad_input:
            every_refusal_names_the_input_and_the_remedy
            a_failed_case_does_not_stop_the_others
            a_closed_pipe_is_no_failure
            messages_stay_short_and_plain
        ;
        edited:
            an_edited_opencl_source_is_verified_timed_and_not_recorded
            what_cannot_be_used_is_refused_in_the_terms_of_the_file
            an_edited_cuda_source_is_inspected
        ;
        selfcheck:
            a_short_check_of_every_kind_of_device
            what_is_wrong_is_told_before_any_work
        ;
        inspect:
            storing_late_hides_the_loads_on_amd
            two_tiles_ahead_fit_into_registers
            opencl_reads_as_hip_does
            the_seeds_fault_shows_on_amd
            what_is_missing_or_wrong_is_named
            without_fences_the_compiler_moves_loads_and_stores
            a_single_buffer_is_waited_for_at_once_unless_it_prefetches
            roles_have_loops_of_their_own
            words_and_picture
            staying_work_groups_are_read_per_k_tile
            asynchronous_copies_fly_over_the_math
            storing_late_hides_the_loads_on_nvidia
            the_seeds_fault_shows_on_nvidia
        ;
        onnx:
            a_model_is_tuned_and_reported
            a_model_with_free_dimensions_tunes
            a_light_model_tunes
        ;
        memory:
            an_emulator_without_memory_says_so
        ;
        #[cfg(unix)]
        recipes:
            files_that_leave_their_schema_are_refused
            the_job_for_kubernetes_starts_a_worker
            the_services_of_compose_tune_and_collect
        ;
        #[cfg(unix)]
        launchers:
            slurm_starts_nodes_as_the_guide_says
            mpi_starts_nodes_as_the_guide_says
            ssh_starts_nodes_as_the_guide_says
        ;
    };
    // Half of their time is waiting: for budgets of searches, for workers and servers.
    waits::run(&tests, 2 * waits::cores());
}
