//! The public library: operations on devices, host code, several devices, trials in worker processes.

mod host;
#[path = "../../../ir/tests/support/missing.rs"]
mod missing;
mod operations;
mod prepared;
mod public;
mod reductions;
mod run_time;
mod several_devices;
mod stand_in;
mod trials;
#[macro_use]
#[path = "../../../ir/tests/support/waits.rs"]
mod waits;
#[cfg(unix)]
mod worker;

fn main() {
    #[cfg(unix)]
    worker::plays();
    let tests = tests! {
        #[cfg(unix)]
        trials:
            a_search_outlives_workers_that_crash_and_hang
            a_look_that_crashes_costs_a_worker_and_a_plan
            without_a_worker_nothing_is_tuned_and_no_look_is_taken
        ;
        several_devices:
            two_opencl_devices
            two_emulated_devices
            two_gpus
            a_worker_without_a_context_of_its_own
            streams_of_two_devices_of_a_recording_driver
        ;
        host:
            the_host_part_of_one_source_file_compiles
            one_source_file_compiles_at_run_time
            host_code_tells_the_driver_what_our_own_launches_tell_it
            names_dialects_and_images_without_host_code_are_refused
        ;
        reductions:
            integers_of_8_bits
            first_of_the_largest_and_infinite_rows
            nan_and_infinities_arrive
            what_does_not_exist_is_no_zero
            tensors_by_themselves_are_counted
            gradients_of_the_bias_are_counted
            products_of_rocmlir
            fixed_orders_repeat
            channels_of_convolutions_are_counted
            empty_axes_have_identities
            counts_are_exact
            extremes_are_the_same_under_every_plan
            lines_that_start_anywhere
            indices_have_as_many_bits_as_tiles_reach
            zeros_of_either_sign_are_equal
            what_is_missing_is_named
            integers_wrap_where_said
            blocks_of_rows_and_columns
            runs_follow_each_other_without_clearing
            operands_over_k_are_counted
            groups_of_channels_are_counted
            blocks_that_do_not_divide_are_refused
            a_linear_cross_entropy_gives_losses
            operands_that_cannot_be_reduced_are_named
        ;
        operations:
            zero_points_of_8_bit_integers
            products_of_8_bit_integers
            products_of_complex_numbers
            gated_products_and_their_preactivations
            products_of_two_pairs_of_factors
            a_convolution_in_place_and_materialised
            sources_stand_alone_in_every_language
            every_storage_type
            gradients_of_a_strided_convolution_accumulate
            threads_share_a_context_and_its_workspace
            products_of_two_8_bit_floats
            an_odd_offset_falls_back_to_narrow_accesses
            odd_sizes_with_beta
            rows_of_groups_are_multiplied_by_their_factors
            terms_of_groups_are_summed_apart
            refusals_name_the_input
            bias_activation_and_residual
        ;
        public:
            a_product_told_in_the_other_order_is_found
            several_operations_share_a_budget
            a_search_with_all_options
            plans_set_and_refused
            memory_of_another_context_is_refused
            memory_by_name_and_by_slice
            extents_at_launch
            a_context_tells_what_it_is
        ;
        prepared:
            a_result_that_overlaps_a_factor_is_refused
            prepared_operations_go_to_any_thread
            what_is_missing_is_named
            a_preparation_holds_for_the_alignment_it_was_asked_for
            extents_of_a_launch_touch_no_more_than_they_say
            leading_dimensions_bias_and_old_values_are_those_of_the_caller
        ;
        run_time:
            reductions_are_those_of_the_launch
            one_kernel_runs_every_batch_and_both_sides
            buckets_compile_once_each
            exchanged_products_store_in_bulk
            sizes_beyond_the_declared_are_refused
            one_kernel_runs_every_number_of_rows
        ;
        #[cfg(unix)]
        worker:
            a_program_that_calls_worker_main_is_its_own_worker
            is_a_worker
        ;
    };
    // Some wait for workers that hang.
    waits::run(&tests, 2 * waits::cores());
}
