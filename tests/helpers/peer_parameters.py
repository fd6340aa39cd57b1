"""Arguments of XGBoost 3.4.1, LightGBM 4.7.0 and CatBoost 1.2.10, and names of their models' attributes.

Of the signatures of their estimators, of their functions that train and of their tables of data, and of their tables of
parameters with all aliases; names of internal state are left out. So the tests do not depend on the installed versions.
"""

from __future__ import annotations

OF_XGBOOST: dict[str, str] = {
    "constructor": """
        aft_loss_distribution aft_loss_distribution_scale allow_group_split alpha base_score boost_from_average booster
        callbacks coll_cfg colsample_bylevel colsample_bynode colsample_bytree device disable_default_eval_metric
        early_stopping_rounds enable_categorical eta eval_metric feature_selector feature_types feature_weights gamma gpu_id
        grow_policy huber_slope importance_type interaction_constraints lambda lambdarank_bias_norm lambdarank_normalization
        lambdarank_num_pair_per_sample lambdarank_pair_method lambdarank_score_normalization lambdarank_unbiased learning_rate
        max_bin max_cached_hist_node max_cat_threshold max_cat_to_onehot max_delta_step max_depth max_leaves min_child_weight
        min_split_loss missing monotone_constraints multi_strategy n_estimators n_jobs ndcg_exp_gain normalize_type nthread
        num_boost_round num_class num_parallel_tree num_trees objective one_drop process_type quantile_alpha random_state
        rate_drop refresh_leaf reg_alpha reg_lambda sample_type sampling_method scale_pos_weight seed seed_per_iteration
        skip_drop subsample tree_method tweedie_variance_power updater validate_parameters verbosity
    """,
    "fit": """
        base_margin base_margin_eval_set eval_group eval_qid eval_set feature_weights group qid sample_weight
        sample_weight_eval_set verbose xgb_model
    """,
    "train": """
        as_pandas base_margin callbacks client coll_cfg custom_metric data_split_mode early_stopping_rounds enable_categorical
        evals evals_result feature_names feature_types feature_weights folds fpreproc group label label_lower_bound
        label_upper_bound max_bin max_quantile_batches maximize metrics missing nfold nthread num_boost_round obj params qid
        ref seed show_stdv shuffle silent stratified verbose_eval weight xgb_model
    """,
    "predict": """
        approx_contribs base_margin data iteration_range missing ntree_limit output_margin pred_contribs pred_interactions
        pred_leaf predict_type strict_shape training validate_features
    """,
    "attributes": """
        apply best_iteration best_score classes_ coef_ evals_result feature_importances_ feature_names_in_ fit get_booster
        get_metadata_routing get_num_boosting_rounds get_params get_xgb_params intercept_ load_model n_features_in_ predict
        predict_proba save_model score set_fit_request set_params set_predict_proba_request set_predict_request
        set_score_request
    """,
    "attributes of a Booster": """
        attr attributes best_iteration best_score boost copy dump_model eval eval_set feature_names feature_types
        get_categories get_dump get_fscore get_score get_split_value_histogram inplace_predict load_config load_model
        num_boosted_rounds num_features predict reset save_config save_model save_raw set_attr set_param trees_to_dataframe
        update
    """,
}

OF_LIGHTGBM: dict[str, str] = {
    "constructor": """
        alpha app application auc_mu_weights bagging bagging_by_query bagging_fraction bagging_fraction_seed bagging_freq
        bagging_seed bin_construct_sample_cnt blacklist boost boost_from_average boosting boosting_type bundle cat_column
        cat_feature cat_l2 cat_smooth categorical_column categorical_feature categorical_features cegb_penalty_feature_coupled
        cegb_penalty_feature_lazy cegb_penalty_split cegb_tradeoff class_weight client colsample_bynode colsample_bytree
        config config_file convert_model convert_model_file convert_model_language data data_filename data_random_seed
        data_sample_strategy data_seed deterministic device device_type drop_rate drop_seed early_stopping
        early_stopping_min_delta early_stopping_round early_stopping_rounds enable_bundle enable_sparse eta eval_at extra_seed
        extra_tree extra_trees fair_c fc feature_contri feature_contrib feature_fraction feature_fraction_bynode
        feature_fraction_seed feature_penalty feature_pre_filter first_metric_only force_col_wise force_row_wise forced_splits
        forced_splits_file forced_splits_filename forcedbins_filename forcedsplits_filename fp fs gpu_device_id
        gpu_device_id_list gpu_platform_id gpu_use_dp group group_column group_id has_header header hist_pool_size
        histogram_pool_size ignore_column ignore_feature importance_type input_model interaction_constraints is_enable_bundle
        is_enable_sparse is_pre_partition is_provide_training_metric is_save_binary is_save_binary_file is_sparse
        is_training_metric is_unbalance l1_regularization l2_regularization label label_column label_gain lambda lambda_l1
        lambda_l2 lambdarank_norm lambdarank_position_bias_regularization lambdarank_truncation_level learning_rate
        linear_lambda linear_tree linear_trees local_listen_port local_port loss machine_list machine_list_file
        machine_list_filename machines map_at map_eval_at max_bin max_bin_by_feature max_bins max_cat_threshold
        max_cat_to_onehot max_delta_step max_depth max_drop max_iter max_leaf max_leaf_nodes max_leaf_output max_leaves
        max_tree_output mc mc_method mc_penalty metric metric_freq metric_types metrics min_child_samples min_child_weight
        min_data min_data_in_bin min_data_in_leaf min_data_per_group min_data_per_leaf min_gain_to_split min_hessian
        min_samples_leaf min_split_gain min_sum_hessian min_sum_hessian_in_leaf min_sum_hessian_per_leaf mlist model_in
        model_input model_out model_output monotone_constraining_method monotone_constraint monotone_constraints
        monotone_constraints_method monotone_penalty monotone_splits_penalty monotonic_cst ms_penalty multi_error_top_k
        n_estimators n_iter n_iter_no_change n_jobs name_pred ndcg_at ndcg_eval_at neg_bagging neg_bagging_fraction
        neg_sub_row neg_subsample nodes nrounds nthread nthreads num_boost_round num_class num_classes num_gpu
        num_grad_quant_bins num_iteration num_iterations num_leaf num_leaves num_machine num_machines num_round num_rounds
        num_thread num_threads num_tree num_trees objective objective_seed objective_type other_rate output_freq output_model
        output_result parser_config_file path_smooth poisson_max_delta_step port pos_bagging pos_bagging_fraction pos_sub_row
        pos_subsample pre_partition precise_float_parser pred_name predict_name predict_result prediction_name
        prediction_result quant_train_renew_leaf query query_column query_id random_seed random_state rate_drop
        refit_decay_rate reg_alpha reg_lambda reg_sqrt save_binary save_period saved_feature_importance_type scale_pos_weight
        seed shrinkage_rate sigmoid skip_drop snapshot_freq sparse stochastic_rounding sub_feature sub_feature_bynode sub_row
        subsample subsample_for_bin subsample_freq task task_type test test_data test_data_file time_out top_k top_rate topk
        train train_data train_data_file train_metric training_metric tree tree_learner tree_learner_type tree_type
        tweedie_variance_power two_round two_round_loading unbalance unbalanced_sets uniform_drop use_missing
        use_quantized_grad use_two_round_loading valid valid_data valid_data_file valid_filenames verbose verbosity weight
        weight_column workers xgboost_dart_mode zero_as_missing
    """,
    "fit": """
        callbacks categorical_feature eval_X eval_at eval_class_weight eval_group eval_init_score eval_metric eval_names
        eval_sample_weight eval_set eval_y feature_name group init_model init_score sample_weight
    """,
    "train": """
        callbacks categorical_feature contrib eval_train_metric feature_name feval folds fpreproc free_raw_data group
        init_model init_score is_predict_contrib is_predict_leaf_index is_predict_raw_score keep_training_booster label
        leaf_index metrics nfold num_boost_round num_iteration_predict params position pred_early_stop pred_early_stop_freq
        pred_early_stop_margin predict_contrib predict_disable_shape_check predict_leaf_index predict_raw_score
        predict_rawscore raw_score reference return_cvbooster seed shuffle start_iteration_predict stratified valid_names
        valid_sets weight
    """,
    "predict": """
        contrib data data_has_header is_predict_contrib is_predict_leaf_index is_predict_raw_score leaf_index num_iteration
        num_iteration_predict pred_contrib pred_early_stop pred_early_stop_freq pred_early_stop_margin pred_leaf
        predict_contrib predict_disable_shape_check predict_leaf_index predict_raw_score predict_rawscore raw_score
        start_iteration start_iteration_predict validate_features
    """,
    "attributes": """
        best_iteration_ best_score_ booster_ classes_ client_ decision_function evals_result_ feature_importances_
        feature_name_ feature_names_in_ fit get_metadata_routing get_params n_classes_ n_estimators_ n_features_
        n_features_in_ n_iter_ objective_ predict predict_proba score set_decision_function_request set_fit_request set_params
        set_predict_proba_request set_predict_request set_score_request to_local
    """,
    "attributes of a Booster": """
        add_valid current_iteration dump_model eval eval_train eval_valid feature_importance feature_name free_dataset
        free_network get_leaf_output get_split_value_histogram lower_bound model_from_string model_to_string num_feature
        num_model_per_iteration num_trees predict refit reset_parameter rollback_one_iter save_model set_leaf_output
        set_network set_train_data_name shuffle_models trees_to_dataframe update upper_bound
    """,
}

OF_CATBOOST: dict[str, str] = {
    "constructor": """
        allow_writing_files approx_on_full_history auto_class_weights bagging_temperature boost_from_average boosting_type
        bootstrap_type border_count cat_features class_weights classes_count counter_calc_method ctr_leaf_count_limit
        ctr_target_border_count custom_metric depth devices diffusion_temperature early_stopping_rounds embedding_features eta
        eval_metric feature_border_type feature_weights first_feature_use_penalties fold_len_multiplier gpu_ram_part
        grow_policy has_time input_borders iterations l2_leaf_reg langevin leaf_estimation_backtracking
        leaf_estimation_iterations leaf_estimation_method learning_rate logging_level loss_function max_bin max_ctr_complexity
        max_leaves metric_period min_child_samples min_data_in_leaf model_shrink_mode model_shrink_rate model_size_reg
        monotone_constraints mvs_reg n_estimators nan_mode num_boost_round num_leaves num_trees objective od_pval od_type
        od_wait one_hot_max_size penalties_coefficient per_float_feature_quantization posterior_sampling random_seed
        random_state random_strength reg_lambda rsm sampling_frequency sampling_unit save_snapshot scale_pos_weight
        score_function simple_ctr snapshot_file snapshot_interval subsample task_type text_features thread_count
        use_best_model used_ram_limit verbose
    """,
    "fit": """
        baseline callbacks cat_features column_description early_stopping_rounds embedding_features eval_set init_model
        log_cerr log_cout logging_level metric_period plot plot_file sample_weight save_snapshot silent snapshot_file
        snapshot_interval text_features use_best_model verbose
    """,
    "train": "",
    "predict": """
        data ntree_end ntree_start prediction_type task_type thread_count verbose
    """,
}
