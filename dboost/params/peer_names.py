"""Names of XGBoost, LightGBM, CatBoost and scikit-learn: one table for all functions and methods.

A name of another library is an alias of ours where it has the same meaning (`ALIASES`), or it is an error with a sentence that
says what to use (`HINTS`). A few values have other names, too (`VALUES`). `accepts_peer_names` applies the table to a
function: `dboost.fit`, `dboost.cv`, `dboost.prepare` and the constructor of the estimators. `serves_peer_names` applies
it to all public methods of a class: `Booster` and the estimators. Aliases are converted at once: models, checkpoints, prepared
data and `get_params` of the estimators have our names. `None` as the value of another library's name counts as not given, and
so it does for our names with a default of None in another library (`NONES`).
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from dboost.errors import InputTypeError, ParameterError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def _by_name(names_by_entry: Mapping[str, str]) -> dict[str, str]:
    """Return an entry of the table by each of its names. names_by_entry : the names in one text."""
    return {name: entry for entry, names in names_by_entry.items() for name in names.split()}


#: Names of XGBoost, LightGBM, CatBoost and scikit-learn for losses, in small letters.
LOSSES_OF_PEERS = {
    "squared_error": ("l2", "l2_root", "least_squares", "ls", "mean_squared_error", "mse", "reg:linear", "reg:squarederror",
                      "regression", "regression_l2", "rmse", "root_mean_squared_error", "squared_loss", "squarederror"),
    "absolute_error": ("l1", "lad", "mae", "mean_absolute_error", "reg:absoluteerror", "regression_l1"),
    "quantile": ("pinball", "pinball_loss", "reg:quantileerror"),
    "huber": ("reg:pseudohubererror",),
    "expectile": ("reg:expectileerror",),
    "normal": ("rmsewithuncertainty",),
    "poisson": ("count:poisson",),
    "gamma": ("reg:gamma",),
    "tweedie": ("reg:tweedie",),
    "log_loss": ("binary", "binary:logistic", "binary_crossentropy", "binary_logloss", "binomial_deviance",
                 "categorical_crossentropy", "cross_entropy", "crossentropy", "deviance", "log", "logistic", "logloss",
                 "multi:softmax", "multi:softprob", "multi_logloss", "multiclass", "multinomial_deviance", "softmax"),
}  # fmt: skip
#: Of these, the names of losses that differ: another function near zero, targets between 0 and 1, predictions of two columns.
_SIMILAR_LOSSES = {"reg:pseudohubererror", "cross_entropy", "crossentropy", "rmsewithuncertainty"}
_LOSSES: dict[Any, Any] = {
    name: ours for ours, names in LOSSES_OF_PEERS.items() for name in names if name not in _SIMILAR_LOSSES
}
_OWN_LOSS = "or give a dboost.losses.Loss of your own"
#: What to use in place of losses of other libraries that have no equal in dboost, by their names in small letters.
LOSSES_NOT_BUILT = _by_name({
    "dboost has no losses for ranking: predict the relevance (loss='squared_error') or the probability of it "
    "(loss='log_loss'), and sort the rows of a query by predict(X)":
        "rank:ndcg rank:map rank:pairwise lambdarank lambdamart rank_xendcg xendcg xe_ndcg xe_ndcg_mart xendcg_mart yetirank "
        "yetirankpairwise pairlogit pairlogitpairwise pairwise queryrmse querysoftmax querycrossentropy queryauc ndcg map "
        "stochasticrank stochasticfilter groupquantile ranking rank",
    "dboost has no losses for survival times: make a row of each subject and period, whose target is whether the event "
    "happened in it, and give loss='log_loss' with the period as a feature, or loss='poisson' with offset=log of its length":
        "survival:cox survival:aft cox coxph aft survivalaft survival weibull exponential_survival censored",
    "give loss='absolute_error' with sample_weight=1/abs(target), which is the same":
        "mape mean_absolute_percentage_error mean_absolute_percent_error",
    "give loss='squared_error' with target=numpy.log1p(target), which is the same, and take numpy.expm1 of the predictions":
        "reg:squaredlogerror msle rmsle mean_squared_log_error squared_log_error",
    f"give loss='huber', which is like it, {_OWN_LOSS}": "fair logcosh log_cosh smooth_l1 huber_loss",
    f"give loss='log_loss', or 'exponential', {_OWN_LOSS}": "binary:hinge hinge squared_hinge modified_huber",
    "give loss='log_loss'; predict(X, raw_score=True) of the model (booster_ of an estimator) returns the raw scores":
        "binary:logitraw",
    "give loss='log_loss' and a target of several columns, one of each label":
        "multilogloss multicrossentropy multilabel multioutput",
    "give loss='log_loss' with each row twice: target 1 with sample_weight=p, and target 0 with sample_weight=1-p":
        "reg:logistic cross_entropy_lambda xentlambda xentropy",
    "give loss='log_loss', in which classes are weighted by class_weight of DBoostClassifier or by sample_weight, "
    f"{_OWN_LOSS}": "focal focal_loss weighted_log_loss",
    "give loss='quantile' with quantile=[0.1, 0.5, 0.9]": "multiquantile multi_quantile",
    "give loss='squared_error' and a target of several columns": "multirmse multirmsewithmissingvalues",
    "it is a metric: give it as eval_metric":
        "auc roc_auc f1 accuracy r2 average_precision balanced_accuracy error merror multi_error zero_one_loss",
})  # fmt: skip
#: Our values by those of other libraries, by the name that these are given to; other values of it are ours.
VALUES: dict[str, dict[Any, Any]] = {
    **dict.fromkeys(("objective", "objective_type", "application", "app", "loss_function"), _LOSSES),
    "grow_policy": {"lossguide": "best_first", "depthwise": "depth_wise"},
    "continue_steps": {"shrunk": "damped"},
    "max_leaves": {0: None},
    "categorical_feature": {"auto": "from_dtype"},
}


def our_value(name: str, value: Any) -> Any:
    """Return the value of a name as ours."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return value
    return VALUES.get(name, {}).get(value.lower() if isinstance(value, str) else value, value)


_THREADS = "n_jobs nthread nthreads num_threads num_thread thread_count"
#: Aliases that are keywords in the signatures. `params.canonical` converts them.
SHOWN_ALIASES = {"init_model": "start_from", "grow_policy": "growth", "leaf_estimation": "step"}
#: All aliases of the functions that train and of the constructor of the estimators, by their names.
ALIASES: dict[str, str] = {
    **SHOWN_ALIASES,
    **_by_name(
        dict(
            max_iter="n_estimators num_boost_round num_iterations num_iteration n_iter num_trees num_tree num_round num_rounds "
            "nrounds iterations",
            learning_rate="eta shrinkage_rate",
            loss="objective objective_type application app loss_function",
            max_leaf_nodes="max_leaves num_leaves num_leaf max_leaf",
            max_depth="depth",
            min_samples_leaf="min_child_samples min_data_in_leaf min_data min_data_per_leaf",
            min_hessian="min_child_weight min_sum_hessian_in_leaf min_sum_hessian min_sum_hessian_per_leaf",
            l2_regularization="reg_lambda lambda lambda_l2 l2_leaf_reg",
            l1_regularization="reg_alpha lambda_l1",
            max_delta_step="max_leaf_output max_tree_output",
            max_bins="max_bin",
            subsample="bagging_fraction bagging sub_row",
            max_features="colsample_bynode feature_fraction_bynode sub_feature_bynode",
            monotonic_cst="monotone_constraints monotone_constraint mc",
            interaction_cst="interaction_constraints",
            categorical_features="categorical_feature cat_features cat_feature cat_column categorical_column",
            categorical_smoothing="cat_smooth",
            categorical_l2="cat_l2",
            max_category_group="max_cat_threshold",
            expectile="expectile_alpha",
            tweedie_power="tweedie_variance_power",
            random_state="seed random_seed",
            n_threads=_THREADS,
            early_stopping_rounds="early_stopping_round od_wait",
            eval_metric="metric metrics metric_types",
            start_from="xgb_model",
            sample_weight="weight",
            target="y label",
            data="X dtrain train_set",
            folds="nfold n_folds n_splits",
        )
    ),
}
_N_SHOWN = "max_num_features max_display top_n top top_k n n_features num_features"
#: Aliases of the functions that predict.
PREDICTION_ALIASES = _by_name({"X": "data", "raw_score": "output_margin", "n_threads": _THREADS})
#: Those of the methods that interpret the trees.
TREE_ALIASES = PREDICTION_ALIASES | _by_name({"max_features": _N_SHOWN})
#: Aliases of the other methods of models.
MODEL_ALIASES = _by_name(
    dict(
        data="X dtrain train_set",
        target="y label",
        sample_weight="weight",
        n_threads=_THREADS,
        random_state="seed random_seed",
        decay="decay_rate refit_decay_rate",
        kind="importance_type",
        max_features=_N_SHOWN,
        path="fname filename",
        i="tree_index tree_idx tree_id tree index num_trees",
    )
)
#: Names of rows and targets in the methods of scikit-learn.
_OF_SCIKIT_LEARN = {"data": "X", "target": "y"}

#: Our keywords whose default in another library is None.
NONES = ("callbacks", "learning_rate", "max_features", "multi_strategy", "subsample")

_FEATURES_OF_NODES = "features are sampled for every node, see max_features"
_CLASS_WEIGHT = "give class_weight of DBoostClassifier, such as {0: 1, 1: 4} or 'balanced', or sample_weight"
_CPU = "dboost trains on CPUs: leave it out"
_HISTOGRAMS = "dboost always uses histograms of binned values: leave it out"
_OF_FIT = "it is an argument of fit"
_WORKERS = "the workers of a Dask cluster train, see client and workers"
_PROGRESS = "give progress=True or False"
_EVAL = "give eval_set: (X, y), (X, y, weight), or a dict of these by name"
_GAIN = "dboost's gains are half of those of XGBoost and LightGBM"
_OFFSET = "offset is added to the best constant, in fit and in predict"
_GBDT = "dboost has no DART, linear trees or gradient-based sampling: leave it out"
_FOREST = "give boosting='forest' for a random forest"
_DETERMINISTIC = "a dboost model depends only on data, parameters and random_state"
_RANKING = "dboost has no losses for ranking: leave it out"
_SURVIVAL = "dboost has no losses for survival times: leave it out"
_CATEGORICAL = "see categorical_features: by default columns of text and categories"
_LOSS = "give loss a dboost.losses.Loss of your own"
_METRIC = "give eval_metric a function f(y, prediction, weight), or a dboost.metrics.Metric, which knows its direction"
_CHECKPOINT = "give checkpoint a folder; the same call resumes from it"
_FILES = "dboost reads tables and paths: see features, target and sample_weight"
_SCALAR_LEVEL = "give quantile with loss='quantile', huber_alpha with loss='huber', l1_regularization for a penalty"
_SAMPLES = "subsample draws new rows in every iteration"
_EARLY_STOPPING = "give early_stopping=dboost.EarlyStopping(rounds, min_delta=…)"
_SEED = "random_state is the seed of all random choices"
_BINS = "the values of a feature are binned by their quantiles into max_bins bins"
_MODEL_FILE = "call save of the model"
_NO_PART = "dboost has no such regularization, see l2_regularization, leaf_penalty and min_samples_leaf"


#: What to use in place of names of other libraries that have no equal in dboost.
HINTS = _by_name({
    _FEATURES_OF_NODES:
        "colsample_bytree colsample_bylevel colsample feature_fraction sub_feature rsm feature_weights feature_contri "
        "feature_contrib fc fp feature_penalty",
    _CLASS_WEIGHT:
        "class_weight scale_pos_weight is_unbalance unbalance unbalanced_sets class_weights auto_class_weights "
        "pos_bagging_fraction pos_bagging pos_sub_row pos_subsample neg_bagging_fraction neg_bagging neg_sub_row neg_subsample",
    _CPU:
        "device device_type task_type devices gpu_id gpu_device_id gpu_platform_id gpu_device_id_list gpu_use_dp num_gpu "
        "predictor gpu_ram_part",
    _HISTOGRAMS:
        "tree_method tree_learner tree tree_type tree_learner_type force_row_wise force_col_wise is_enable_sparse sparse "
        "is_sparse enable_sparse enable_bundle bundle is_enable_bundle histogram_pool_size hist_pool_size use_quantized_grad "
        "num_grad_quant_bins quant_train_renew_leaf stochastic_rounding max_cached_hist_node sketch_eps",
    _WORKERS:
        "machines nodes num_machines num_machine local_listen_port port local_port time_out machine_list_filename mlist "
        "machine_list machine_list_file pre_partition is_pre_partition data_split_mode coll_cfg",
    _PROGRESS:
        "verbose verbosity verbose_eval silent logging_level metric_period metric_freq output_freq log_cout log_cerr plot "
        "plot_file show_stdv",
    _EVAL:
        "evals valid_sets valid_names valid validation_data eval_names eval_sample_weight sample_weight_eval_set "
        "eval_class_weight eval_init_score base_margin_eval_set eval_X eval_y eval_group eval_qid test test_data valid_data "
        "valid_data_file test_data_file valid_filenames X_val y_val sample_weight_val offset_val validation_fraction",
    f"give leaf_penalty: {_GAIN}, so gamma=2 is leaf_penalty=1": "gamma min_split_loss",
    f"give min_gain: {_GAIN}, so min_split_gain=2 is min_gain=1": "min_split_gain min_gain_to_split",
    "give client, such as client=dask.distributed.Client(cluster)": "cluster scheduler address scheduler_address distributed",
    "give filter, such as filter=\"age > 30\", to choose rows; dboost has no losses for ranking": "query",
    f"give offset: {_OFFSET}": "init_score base_margin baseline base_score boost_from_average init",
    _GBDT:
        "booster boost sampling_method data_sample_strategy bootstrap_type "
        "bagging_temperature linear_tree linear_trees linear_lambda rate_drop drop_rate skip_drop max_drop uniform_drop "
        "one_drop drop_seed sample_type normalize_type xgboost_dart_mode top_rate other_rate extra_trees extra_tree "
        "feature_selector updater process_type refresh_leaf langevin diffusion_temperature posterior_sampling "
        "tree_grow_policy mvs_reg sampling_unit approx_on_full_history fold_len_multiplier fold_permutation_block "
        "boost_from_model score_function random_strength",
    _FOREST: "boosting_type num_parallel_tree bootstrap max_samples",
    _DETERMINISTIC: "deterministic seed_per_iteration has_time",
    _RANKING:
        "qid query_id group_id subgroup_id pairs eval_at lambdarank_truncation_level lambdarank_norm label_gain "
        "lambdarank_pair_method lambdarank_num_pair_per_sample lambdarank_unbiased lambdarank_bias_norm "
        "lambdarank_score_normalization lambdarank_position_bias_regularization ndcg_exp_gain map_at ndcg_at map_eval_at "
        "ndcg_eval_at bagging_by_query position allow_group_split lambdarank_normalization",
    _SURVIVAL: "aft_loss_distribution aft_loss_distribution_scale label_lower_bound label_upper_bound",
    _CATEGORICAL:
        "enable_categorical feature_types max_cat_to_onehot one_hot_max_size text_features embedding_features ctr_description "
        "simple_ctr combinations_ctr max_ctr_complexity ctr_target_border_count counter_calc_method ctr_leaf_count_limit",
    "give min_category_hessian, a sum of Hessians": "min_data_per_group",
    _LOSS: "obj fobj",
    _METRIC:
        "greater_is_better higher_is_better scoring feval custom_metric maximize disable_default_eval_metric "
        "disable_default_metric",
    "give eval_set and see the column train_loss of the history":
        "is_provide_training_metric training_metric is_training_metric train_metric eval_train_metric",
    "see the frame history of the model": "evals_result",
    _CHECKPOINT:
        "resume resume_from checkpoint_path checkpoint_dir snapshot_freq save_period snapshot_file snapshot_interval "
        "save_snapshot train_dir allow_writing_files",
    _FILES:
        "header has_header label_column weight_column group_column query_column ignore_column blacklist ignore_feature "
        "ignored_features two_round two_round_loading use_two_round_loading save_binary is_save_binary is_save_binary_file "
        "data_random_seed parser_config_file precise_float_parser column_description feature_name feature_names "
        "data_has_header data_filename config config_file train train_data train_data_file data_seed",
    _SCALAR_LEVEL: "alpha",
    "give quantile": "quantile_alpha quantiles q",
    "give huber_alpha, which is a quantile of the residuals": "huber_slope delta",
    "give max_iter": "epochs n_epochs n_trees ntrees rounds n_rounds",
    "give learning_rate": "lr learn_rate step_size",
    "give validation_fraction": "validation_split test_size val_size holdout",
    "give filter, or a part of the rows; subsample draws rows for each tree": "nrows sample frac sample_frac limit",
    "dboost reads Parquet and CSV, by the ending of the path: leave it out": "format file_format filetype",
    _SAMPLES: "bagging_freq subsample_freq sampling_frequency",
    _EARLY_STOPPING:
        "patience od_type od_pval early_stopping_min_delta first_metric_only use_best_model n_iter_no_change tol "
        "early_stopping_tolerance",
    _SEED: "bagging_seed bagging_fraction_seed feature_fraction_seed extra_seed objective_seed",
    _BINS:
        "border_count subsample_for_bin bin_construct_sample_cnt min_data_in_bin max_bin_by_feature feature_border_type "
        "forcedbins_filename feature_pre_filter per_float_feature_quantization input_borders ref max_quantile_batches",
    "NaN and nulls are missing: replace other values in the data": "missing use_missing zero_as_missing nan_mode missing_value",
    _MODEL_FILE:
        "output_model model_out model_output output_model_file saved_feature_importance_type convert_model "
        "convert_model_language convert_model_file model_size_reg keep_training_booster free_raw_data reference",
    "call importance(kind) of the model": "importance_type",
    "see monotonic_cst":
        "monotone_constraints_method mc_method monotone_constraining_method monotone_penalty mc_penalty ms_penalty "
        "monotone_splits_penalty",
    "see interaction_cst, monotonic_cst and max_features":
        "forcedsplits_filename fs forced_splits forced_splits_file forced_splits_filename",
    _NO_PART:
        "path_smooth cegb_tradeoff cegb_penalty_split cegb_penalty_feature_lazy cegb_penalty_feature_coupled ccp_alpha "
        "min_impurity_decrease min_weight_fraction_leaf min_samples_split penalties_coefficient first_feature_use_penalties "
        "per_object_feature_penalties model_shrink_rate model_shrink_mode",
    "give memory_limit": "used_ram_limit pinned_memory_size max_bytes max_memory memory memory_budget low_memory max_ram "
        "ram out_of_core external_memory",
    "give step: 'leaf', 'line_search' or 'constant'":
        "leaf_estimation_method leaf_estimation_iterations leaf_estimation_backtracking",
    "give start_from": "input_model model_in model_input warm_start model base_model booster_model",
    "give offset the logarithm of the exposure, such as offset=np.log(exposure), for losses whose raw score is one": "exposure",
    "give filter, such as filter=\"age > 30\"": "where",
    "the target decides, or loss: \"log_loss\" for classes, \"squared_error\" for numbers": "task",
    "give features, the columns to use": "drop drop_columns exclude columns usecols feature_columns",
    "the classes are those of the target: leave it out": "num_class num_classes classes_count class_names",
    "give callbacks": "monitor",
    "give max_delta_step": "poisson_max_delta_step",
    "an unknown name is always an error: leave it out": "validate_parameters",
    "missing and misnamed columns are always errors: leave it out": "validate_features predict_disable_shape_check",
    "give the parameters as keywords: dboost.fit(data, target, learning_rate=0.1)": "params param parameters",
    "each class is divided evenly, and rows at random (by random_state)": "stratified shuffle",
    "see scores and boosters of the result": "as_pandas return_cvbooster",
    "transform the data before dboost.cv": "fpreproc",
    "give folds": "cv k_folds",
    "transform the target before the fit": "reg_sqrt",
    "see the evaluation metrics of the documentation":
        "fair_c sigmoid auc_mu_weights multi_error_top_k top_k topk metric_params",
    "call refit_leaves of the model or of the estimator": "refit_decay_rate refit refit_leaves",
})  # fmt: skip
#: Where our own keywords belong, for functions that do not have them.
PLACES = _by_name(
    {
        "it is an argument of dboost.cv": "folds groups time repeats",
        "it is an argument of dboost.prepare": "path publish",
        _OF_FIT: "eval_set sample_weight offset",
        "dboost.fit and dboost.prepare take groups, and fit takes their data set": "group",
        "give the rows to fit": "data",
        "give the target to fit": "target",
    }
)
#: Names in `HINTS` that are also those of notes on a model, such as ``model.feature_names = columns``.
_NOTES = _by_name({
    "": "base_model baseline class_names classes_count config cv eval_names evals_result feature_name feature_names format "
        "init limit model monitor nodes num_class num_classes param parameters params plot position predictor query ref "
        "reference sample task test test_data train train_data tree valid valid_data validation_data",
})  # fmt: skip
#: How similar a new attribute of an estimator is to the name of a parameter that it is taken for. Keywords are taken for less
#: similar ones: these are always meant as parameters.
_SIMILAR_ATTRIBUTE = 0.88
#: The same, of the functions that predict.
PREDICTION_HINTS = _by_name({
    "call apply(X)": "pred_leaf predict_leaf_index leaf_index is_predict_leaf_index",
    "call shap_values(X) of the model (booster_ of an estimator)":
        "pred_contrib pred_contribs predict_contrib contrib is_predict_contrib approx_contribs pred_interactions",
    "give iteration_range=(first, last), such as (0, 50) for the first 50 iterations":
        "num_iteration start_iteration ntree_limit best_ntree_limit ntree_start ntree_end num_iteration_predict "
        "start_iteration_predict",
    "call booster_.predict(X, raw_score=True), or decision_function(X) of a classifier":
        "output_margin raw_score predict_raw_score predict_rawscore is_predict_raw_score",
    "give offset": "base_margin init_score",
    "call predict_proba(X), or booster_.predict(X, raw_score=True)": "prediction_type predict_type",
    "call predict, and write what it returns":
        "output_result name_pred pred_name predict_name predict_result prediction_name prediction_result",
    "all trees predict: leave it out, or give iteration_range": "pred_early_stop pred_early_stop_freq pred_early_stop_margin",
    "predictions have one dimension, or a column per class: leave it out": "strict_shape",
    "call predict_proba(X)": "proba probability probabilities type",
    "call drift(X)": "check_drift drift",
    "call calibrate(data, target, coverage=0.9), and then predict_interval(X)":
        "interval intervals prediction_interval coverage",
    "dboost has no DART: leave it out": "training",
})  # fmt: skip
#: Those of methods whose result has no offset.
TREE_HINTS = PREDICTION_HINTS | dict.fromkeys(
    ("offset", "base_margin", "init_score"), "it is about the trees, and an offset is no part of them: leave it out"
)
#: Those of the other methods of models.
MODEL_HINTS = _by_name({
    "call truncate(n_iterations), or write model[:n]":
        "num_iteration start_iteration end_iteration iteration_range ntree_limit best_ntree_limit",
    "give i, the position of a tree, or call truncate(n_iterations) first": "iteration",
    "end the path with .gz, such as \"model.json.gz\"": "compress compression gzip",
    "the rows of the same table are chosen by filter or before: leave it out": "subset",
    "give coverage, such as coverage=0.9 in place of alpha=0.1": "alpha confidence level confidence_level",
    "Shapley values of all rows: call plot_shap_summary(X)": "plot_type",
    "draw on ax: give ax, and change it afterwards":
        "height width xlim ylim title xlabel ylabel figsize dpi grid precision orientation show_info rankdir fmap "
        "show_values values_format color",
    "a table has its own settings: leave it out": "dataset_params",
    "there are plots as those of report: leave it out": "file format pool",
})  # fmt: skip
#: Those of methods that predict intervals.
INTERVAL_HINTS = (
    PREDICTION_HINTS
    | dict.fromkeys(
        ("iteration_range", *(name for name, hint in PREDICTION_HINTS.items() if "iteration_range" in hint)),
        "margins are those of all iterations: leave it out",
    )
    | dict.fromkeys(
        ("alpha", "coverage", "level", "confidence", "confidence_level", "quantiles"),
        "the share of rows within intervals is that of calibrate(data, target, coverage=0.9)",
    )
)
_STUDY = "call dboost.cv(data, target) in the objective of a study of Optuna"
#: What to use in place of attributes and methods of other libraries' models, of shap, and of names that are likely. Calls are
#: those of a model; estimators have them too, unless the sentence says otherwise.
ATTRIBUTES = _by_name({
    "call save(path)": "save_model model_to_string save_raw save_booster dump dumps write to_file to_json to_string serialize",
    "call dboost.load(path)": "load_model model_from_string load load_booster from_file from_json",
    "call dboost.from_xgboost(model)": "from_xgboost",
    "call dboost.from_lightgbm(model)": "from_lightgbm",
    "call to_onnx(path), to_xgboost_json(path) or to_treelite()":
        "export export_model export_xgboost save_xgboost convert "
        "to_pmml to_coreml to_xgboost to_lightgbm to_onnx_model save_onnx export_onnx onnx",
    "see n_iter_":
        "num_trees num_boosted_rounds current_iteration tree_count_ n_estimators_ get_num_boosting_rounds n_trees ntrees "
        "num_iterations n_iterations n_iter num_boost_round num_rounds",
    "see the loss of the model (booster_.loss of an estimator)": "objective_ objective loss_ loss_function",
    "see classes_": "n_classes_ num_model_per_iteration classes n_classes num_class class_names",
    "see client, the parameter of an estimator": "client_",
    "models of clusters are those of one process: the model itself predicts here": "to_local",
    "models have no coefficients: call importance(kind), or shap_values(X)": "coef_ intercept_ coef intercept coefficients",
    "call copy.copy(model)": "copy reset clone",
    "models do not change: call dboost.fit(data, target, …)":
        "set_param set_params load_config reset_parameter set_leaf_output shuffle_models boost add_valid set_train_data_name "
        "set_network free_network free_dataset",
    "call truncate(n_iterations) of the model (booster_ of an estimator)": "rollback_one_iter shrink slice_trees prune",
    "see the frame history, or call predict(X) and a metric":
        "eval eval_set eval_train eval_valid evaluate eval_metrics get_test_eval test_score metrics metric auc accuracy rmse "
        "mae r2 logloss log_loss f1",
    "see sources": "attr set_attr metadata meta info",
    "see features of the model (booster_ of an estimator)": "feature_types get_categories categories cat_features",
    "see n_features_in_": "num_features num_feature n_features_ n_features",
    "see feature_names_in_": "feature_name feature_name_ feature_names feature_names_ column_names_ feature_names_in columns",
    "see best_iteration and the frame history":
        "best_ntree_limit best_score best_score_ best_iteration_ evals_result evals_result_ get_evals_result get_best_score "
        "get_best_iteration train_score_ validation_score_",
    "see the frame history":
        "history_ eval_history evals results learning_curve loss_curve_ scores scores_ log train_losses train_loss",
    "see feature_importances_": "feature_importance_",
    "call importance(kind)":
        "get_fscore get_score feature_importance get_feature_importance importances get_importance variable_importance varimp "
        "explain_global gain",
    "call importance('permutation', data, target)": "permutation_importance perm_importance",
    "call shap_values(X)":
        "explain shap shap_interaction_values get_shap_values explainer feature_contributions contributions explain_local "
        "predict_contributions predict_contrib predict_contribs pred_contribs shapley_values treeshap",
    "call partial_dependence(data, features)": "pdp ice get_partial_dependence dependence",
    "call interaction_strength(data, features)": "interactions get_interactions h_statistic interaction_values",
    "call plot_history()":
        "plot_metric plot_metrics plot_loss plot_learning_curve plot_learning_curves plot_training plot_evals plot_eval "
        "plot_evals_result plot_curve plot_score plot_scores plot_convergence plot",
    "call plot_importance()":
        "plot_feature_importance plot_feature_importances plot_importances plot_varimp plot_variable_importance plot_features",
    "call plot_shap_summary(X)":
        "plot_shap plot_summary plot_beeswarm plot_shap_values plot_shap_bar plot_shapley shap_plot shap_summary "
        "shap_summary_plot summary_plot beeswarm",
    "call plot_shap_dependence(X, feature)": "shap_dependence dependence_plot shap_scatter plot_shap_scatter plot_interaction",
    "call plot_waterfall(X, row)":
        "plot_shap_waterfall plot_force force_plot plot_decision waterfall waterfall_plot plot_prediction plot_explanation "
        "explain_row explain_prediction plot_breakdown plot_contributions",
    "call plot_partial_dependence(data, features)":
        "plot_pdp plot_dependence plot_partial plot_ice plot_ale plot_pd pdp_plot plot_effects",
    "call plot_tree(i), or to_frame()":
        "to_dot to_graphviz create_tree_digraph plot_trees export_graphviz export_text print_tree get_tree trees tree_ "
        "show_tree visualize plot_model tree",
    "call report(path, data, target), or predict_proba(X) and a display of sklearn.metrics":
        "plot_roc plot_roc_curve plot_auc roc_curve roc_auc plot_pr plot_pr_curve plot_precision_recall plot_confusion_matrix "
        "plot_confusion confusion_matrix plot_det",
    "call plot_calibration(data, target)": "plot_reliability calibration_curve plot_calibration_curve plot_reliability_curve",
    "call plot_lift(data, target)": "plot_gain plot_gains plot_cumulative_gain plot_lift_curve plot_ks",
    "call plot_residuals(data, target)":
        "plot_residual plot_errors plot_prediction_error plot_predictions plot_actual_vs_predicted residuals",
    "call drift(data)": "plot_drift data_drift detect_drift check_drift psi monitor",
    "call report(path, data, target)": "summary explain_model to_html html dashboard save_report "
        "make_report describe profile classification_report",
    "call to_frame()":
        "trees_to_dataframe get_dump dump_model estimators_ get_tree_leaf_counts get_split_value_histogram get_leaf_output "
        "lower_bound upper_bound to_dataframe to_df to_pandas to_text export_text to_string",
    "call apply(X)": "predict_leaf predict_leaves leaf_index leaf_indices get_leaves calc_leaf_indexes pred_leaf decision_path",
    "call predict_proba(X) of a classifier": "predict_log_proba predict_proba staged_predict_proba predict_probability",
    "call predict(X)": "inplace_predict predict_one predict_raw_data predict_classes",
    "call predict(X) and a metric, such as those of sklearn.metrics": "score",
    "call predict(X, raw_score=True) of the model (booster_ of an estimator)":
        "decision_function predict_raw raw_predict predict_margin raw_scores predict_raw_score",
    "intervals and distributions are of numbers: call predict_proba(X)": "predict_interval predict_distribution",
    "sklearn.calibration.CalibratedClassifierCV calibrates probabilities; for a plot of them call "
    "plot_calibration(data, target)": "calibrate",
    "call calibrate(data, target), and then predict_interval(X)":
        "predict_intervals interval prediction_interval conformal conformalize predict_quantiles predict_std predict_var",
    "call staged_predict(X)": "predict_staged staged_predictions",
    "a Booster is the model itself; see booster_ of an estimator": "get_booster booster_ booster",
    "call refit_leaves(data, target)": "refit update_leaves",
    "call dboost.fit(data, target, start_from=model)":
        "fit train update partial_fit continue_training continue_fit fit_more resume warm_start",
    "call dboost.cv(data, target)": "cv cross_validate cross_val_score",
    _STUDY: "tune optimize grid_search randomized_search",
    "see sources, which have parameters":
        "get_params params get_all_params attributes save_config parameters parameters_ config",
    "call get_params() of an estimator": "get_xgb_params",
})  # fmt: skip

#: Attributes that users of XGBoost set.
_SET_IN_XGBOOST = {"best_ntree_limit", "best_score", "feature_names", "feature_types"}


#: What to use in place of functions and classes of other libraries; `ATTRIBUTES` has methods of models.
MODULE = _by_name({
    "call dboost.fit(data, target)": "train fit_model train_model learn boost Trainer regress classify",
    "call dboost.fit(data, target, client=client), with the client of a Dask cluster":
        "dask distributed spark ray DaskClient train_distributed connect init shutdown",
    "call dboost.cv(data, target)": "cross_validate cross_val_score CV cross_validation_score",
    _STUDY: "tune tuner optimize GridSearchCV RandomizedSearchCV grid_search search hyperopt automl AutoML optuna",
    "give callbacks dboost.integrations.optuna.PruningCallback(trial, metric)": "PruningCallback OptunaPruning",
    "call dboost.integrations.mlflow.autolog()": "autolog mlflow log_model",
    "use dboost.metrics.Metric": "Metric metric make_scorer custom_metric EvalMetric",
    "use dboost.losses.Loss": "Loss loss Objective objective custom_loss CustomLoss",
    "give the table itself to dboost.fit, or dboost.prepare bins it once for many fits":
        "DMatrix QuantileDMatrix ExtMemQuantileDMatrix DaskDMatrix DaskQuantileDMatrix Pool DataIter Sequence DataLoader "
        "read_csv read_parquet load_data make_dataset from_pandas bin",
    "use DBoostClassifier":
        "XGBClassifier DaskXGBClassifier LGBMClassifier DaskLGBMClassifier CatBoostClassifier "
        "HistGradientBoostingClassifier GradientBoostingClassifier DBClassifier DBoostingClassifier Classifier",
    "use DBoostRegressor":
        "XGBRegressor DaskXGBRegressor LGBMRegressor DaskLGBMRegressor CatBoostRegressor "
        "HistGradientBoostingRegressor GradientBoostingRegressor DBRegressor DBoostingRegressor Regressor",
    "use DBoostClassifier(boosting='forest')": "XGBRFClassifier DaskXGBRFClassifier RandomForestClassifier",
    "use DBoostRegressor(boosting='forest')": "XGBRFRegressor DaskXGBRFRegressor RandomForestRegressor",
    "use DBoostClassifier or DBoostRegressor": "XGBModel LGBMModel CatBoost DBoost Model",
    "dboost has no losses for ranking: use DBoostRegressor on the relevance, and sort the rows of a query by predict(X)":
        "XGBRanker LGBMRanker DaskXGBRanker DaskLGBMRanker CatBoostRanker DBoostRanker",
    "call dboost.load(path)": "load_model load_booster read_model read open from_file",
    "call save(path) of the model": "save_model dump save_booster pickle",
    "call dboost.continue_on(chunks, target)": "update partial_fit incremental train_incremental continue_training online",
    "call dboost.plan(table, target)": "estimate estimate_memory memory plan_memory size capacity",
    "call dboost.from_xgboost(model)": "xgboost xgb import_xgboost convert import_model from_model",
    "call dboost.from_lightgbm(model)": "lightgbm lgb import_lightgbm",
    "give early_stopping_rounds, or early_stopping=dboost.EarlyStopping(rounds)": "early_stopping EarlyStoppingCallback",
    "give callbacks, functions of a dboost.Iteration":
        "callback callbacks log_evaluation record_evaluation reset_parameter TrainingCallback Callback EvaluationMonitor",
    "give checkpoint=path to dboost.fit": "checkpoint TrainingCheckPoint Checkpoint",
    "give learning_rate to dboost.fit a function of the iteration": "LearningRateScheduler learning_rate_schedule",
    "give progress=False to dboost.fit, or set the level of logging.getLogger('dboost')":
        "set_config config_context get_config set_verbosity set_log_level register_logger verbosity",
    "see dboost.__version__": "build_info show_versions get_version VERSION",
    "call predict(X) of the model": "predict predict_proba",
})  # fmt: skip

#: What to write in place of commands that do not exist.
COMMANDS = _by_name({
    "dboost train DATA --target COL": "fit learn boost training run build create",
    "dboost train DATA --target COL --checkpoint FOLDER": "resume checkpoint",
    "dboost train DATA --target COL --start-from MODEL": "update continue refit retrain partial_fit finetune",
    "dboost predict MODEL DATA --output predictions.parquet": "pred score apply infer inference transform calc test",
    "dboost predict MODEL DATA --output predictions.parquet --proba": "predict_proba proba",
    "dboost predict MODEL DATA --output predictions.parquet --interval": "predict_interval interval",
    "dboost inspect MODEL": "info show describe summary dump print model view params parameters hyperparameters features",
    "dboost inspect MODEL --json": "json dump_model history learning_curve",
    "dboost inspect MODEL --importance": "importance feature_importance fstr plot_importance",
    "dboost inspect MODEL --dependence COL": "dependence partial_dependence pdp",
    "dboost inspect MODEL --drift DATA": "drift monitor psi",
    "dboost inspect MODEL --html report.html --data DATA --target COL":
        "report html evaluate eval plot explain shap metrics eval_metrics dashboard calibration",
    "python -c \"import dboost; dboost.load('MODEL').plot_tree(0).figure.savefig('tree.png')\"":
        "tree trees plot_tree plot_trees show_tree",
    "python -c \"import dboost; raw = dboost.load('MODEL').predict('DATA', raw_score=True); print(raw.compute())\"":
        "raw raw_score margin output_margin",
    "python -c \"import dboost; print(dboost.plan(1_000_000, 50))\"":
        "rows columns n_rows n_columns nrows ncols n_features n_samples",
    "dboost prepare DATA --target COL --output FOLDER": "bin prep preprocess dataset make_dataset convert_data quantize",
    "dboost cv DATA --target COL": "cross_validate crossval cross_val validate validation",
    "dboost warmup": "warm_up compile",
    "dboost demo": "example examples quickstart start tutorial",
    "dboost --version": "version",
    "dboost --help": "help",
    "dboost cv DATA --target COL --set learning_rate=0.1": "tune optimize search hpo grid_search tuning automl",
    "python -c \"import dboost; dboost.load('MODEL').to_onnx('model.onnx')\"": "export convert onnx to_onnx deploy serve",
    "dboost plan DATA --target COL": "estimate size sizing memory",
    "python -c \"import dboost; dboost.from_xgboost('model.json').save('MODEL')\"": "import from_xgboost from_lightgbm",
})  # fmt: skip
#: What options that do not exist are called, where a command has one of them. In capitals are arguments without an option.
OPTIONS = _by_name({
    "--output": "out outfile out_file out_path output_file output_path output_model model_out save save_to dest result o",
    "--target": "label labels y target_column label_column target_col response dependent_variable t",
    "DATA": "data input input_data input_file file infile in_file path train train_data training_data train_set x i d",
    "--eval":
        "valid valid_data valid_set validation validation_data validation_set val val_data test test_data test_set eval_set "
        "eval_data evaluation",
    "--start-from MODEL": "model model_file input_model model_in continue continue_from resume init warm_start base_model m",
    "--workers": "n_workers num_workers nworkers processes",
    "--scheduler": "cluster address client dask dask_scheduler scheduler_address",
    "--quiet": "silent no_progress q",
    "--verbose": "verbosity log log_level",
    "--checkpoint": "checkpoint_dir checkpoint_path snapshot",
    "--params": "config config_file params_file parameters conf",
    "--folds": "nfold nfolds n_folds n_fold k cv n_splits kfold fold",
    "--proba": "probability probabilities predict_proba prob",
    "--id": "ids id_column id_col key index passthrough keep keep_columns",
    "--drop": "ignore ignore_column ignore_columns exclude drop_column drop_columns drop_cols",
    "--html": "report html_report",
    "--filter": "where query row_filter",
    "--memory-limit --worker-memory": "memory max_memory ram memory_limit",
    "--worker-threads": "threads n_threads nthreads num_threads cores cpus",
})  # fmt: skip


def explanation(name: str, known: Collection[str], hints: Mapping[str, str] = HINTS) -> str:
    """Return what an unknown name of a keyword may mean, to follow the name in a message; empty if nothing is like it.

    known : our names.
    """
    of_fits = "" if hints is HINTS else "of a fit: "
    for table, prefix in ((hints, ""), (HINTS, of_fits), (PREDICTION_HINTS, "it is about predictions: ")):
        if name in table:
            return f": {prefix}{table[name]}"
    ours = ALIASES.get(name, name)
    if ours != name and ours in known:
        return f"; did you mean {ours}?"
    if ours in PLACES:
        return f": {PLACES[ours] if ours == name else PLACES[ours].replace('it is', f'{ours} is')}"
    if ours != name:
        return f": it is called {ours}, which is an argument of other functions"
    near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.75)
    aliases = sorted(alias for alias, name_of_ours in ALIASES.items() if name_of_ours in known)
    near = near or difflib.get_close_matches(name, aliases, n=1, cutoff=0.75)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def with_our_names(
    keywords: Mapping[str, Any],
    known: Collection[str],
    *,
    aliases: Mapping[str, str] = ALIASES,
    hints: Mapping[str, str] = HINTS,
    belongs: Callable[[str], str | None] = lambda _: None,
) -> dict[str, Any]:
    """Return keywords with our names in place of those of other libraries.

    Parameters
    ----------
    keywords : mapping
        Keywords and their values.
    known : collection of str
        Our keywords; their values are returned as they are.
    aliases, hints
        The part of the table that applies.
    belongs : callable, optional
        Returns for one of our keywords that is not known where it belongs, to follow the name in a message, or None.

    Raises
    ------
    ParameterError
        For an unknown name, with what to use; and if a keyword and an alias of it are both given.
    """
    renamed = {name: value for name, value in keywords.items() if name in known}
    for name, value in keywords.items():
        if name in known:
            continue
        alias_of = aliases.get(name, name)
        ours = alias_of if alias_of in known else _OF_SCIKIT_LEARN.get(alias_of, alias_of)
        if ours in known:
            if value is not None:
                if ours in renamed:
                    both = f"{name}={shortened(value)} and {ours}={shortened(renamed[ours])}"
                    raise ParameterError(f"{both} are the same parameter: give one of them")
                renamed[ours] = our_value(name, value)
            continue
        place = belongs(alias_of)
        is_foreign = name in aliases or name in PLACES or place is not None or name in hints or name in HINTS
        if not (is_foreign and value is None):
            raise ParameterError(f"unknown parameter {name!r}{explanation(name, known, hints) if place is None else place}")
    return renamed


def shortened(value: Any) -> str:
    """Return a value's repr for an error message, or its type if that is long."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"<{type(value).__name__}>"


def unknown_in_module(name: str, known: Collection[str], of_models: Collection[str]) -> AttributeError:
    """Return the error for a name that the package does not have, with what to use.

    known : the names that the package has; of_models : those that a model has.
    """
    message = f"module 'dboost' has no attribute {name!r}"
    of_model = ATTRIBUTES.get(name, "")
    if name in MODULE:
        message += f": {MODULE[name]}"
    elif name in of_models:
        message += f": it is of a model, which dboost.fit and dboost.load return: booster.{name}"
    elif of_model.startswith("call ") and "dboost." not in of_model:
        message += f": {of_model} of a model"
    elif near := difflib.get_close_matches(name, known, n=1, cutoff=0.75):
        message += f"; did you mean dboost.{near[0]}?"
    return AttributeError(message, name=name)


#: What to use in place of attributes of other libraries' results of a cross-validation.
OF_CROSS_VALIDATION = _by_name({
    "see best_score, and summary for all iterations": "mean mean_score cv_results_ best_score_ mean_test_score std",
    "see best_iteration": "best_iteration_ n_iter_ num_boost_round",
    "see scores, a row for each fold and iteration":
        "fold_scores test_scores test_score to_frame to_pandas as_pandas results items keys values history",
    "see scores, or call plot_history() of one of the boosters": "plot plot_metric plot_history",
    "see boosters": "models estimators cvbooster best_estimator_",
})  # fmt: skip
#: The same of what callbacks get.
OF_ITERATIONS = _by_name({
    "see record, the metrics by column of the history":
        "evaluation_result_list evaluation_results evals_log metrics scores score losses",
    "see iteration, which counts from 1": "epoch begin_iteration end_iteration n_iter step",
})  # fmt: skip


def unknown_attribute(
    owner: Any,
    name: str,
    model: type | None = None,
    hints: Mapping[str, str] | None = None,
    learning: Collection[str] = (),
) -> AttributeError:
    """Return the error for an attribute that was not found: of a property, its own one; else with what to use.

    owner : the model or estimator, or its class; model : of an estimator, the class of `booster_`; hints : the table that
    applies, default `ATTRIBUTES`; learning : the names of the parameters that are in `Booster.sources`.
    """
    hints = ATTRIBUTES if hints is None else hints
    if isinstance(owner, type):
        message = f"type object {owner.__name__!r} has no attribute {name!r}"
    else:
        if hasattr(type(owner), name):
            try:
                object.__getattribute__(owner, name)
            except AttributeError as error:
                return error
        message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in hints:
        message += f": {hints[name]}"
    elif not name.startswith("_") and not name.endswith("_"):  # scikit-learn asks for such names
        ours = ALIASES.get(name, name)
        if ours in learning:
            return AttributeError(f"{message}: see sources[-1]['parameters'][{ours!r}]", name=name)
        if ours != name and hasattr(owner, ours):
            return AttributeError(f"{message}: it is called {ours}", name=name)
        if hasattr(model, name):
            return AttributeError(f"{message}: it is of the model, booster_.{name}", name=name)
        near = difflib.get_close_matches(name, [public for public in dir(owner) if not public.startswith("_")], n=1, cutoff=0.8)
        if near:
            return AttributeError(f"{message}; did you mean {near[0]}?")  # with the name, Python would ask the same
    return AttributeError(message, name=name, obj=owner)


def refused_attribute(name: str, known: Collection[str]) -> ParameterError | None:
    """Return the error for a new attribute that is meant as a parameter of an estimator; None for other attributes.

    known : the parameters of the estimator.
    """
    ours = ALIASES.get(name, name)
    if ours in known:
        return ParameterError(f"{name!r} has no effect as an attribute: set {ours}, or call set_params({name}=…)")
    is_foreign = (name in HINTS and name not in _NOTES) or PLACES.get(ours) == _OF_FIT
    names = [*known, *(alias for alias, name_of_ours in ALIASES.items() if name_of_ours in known)]
    if is_foreign or difflib.get_close_matches(name, names, n=1, cutoff=_SIMILAR_ATTRIBUTE):
        return ParameterError(f"unknown parameter {name!r}{explanation(name, known)}")
    return None


def refused_attribute_of_model(name: str, learning: Collection[str]) -> ParameterError | None:
    """Return the error for a new attribute of a model that would seem to change it; None for other attributes.

    learning : the names of the parameters of learning.
    """
    if name in _SET_IN_XGBOOST:
        instead = ATTRIBUTES[name]
    elif (ours := ALIASES.get(name, name)) in learning:
        instead = f"call dboost.fit(data, target, {ours}=…)"
    else:
        return None
    return ParameterError(f"{name!r} has no effect as an attribute, because models do not change: {instead}")


class AnswersGuesses(type):
    """The class of the classes of models: unknown attributes of these are those of models, see `unknown_attribute`."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            raise unknown_attribute(cls, name)


def no_loss(value: Any) -> str:
    """Return what a value may mean that is no loss, to follow it in a message: estimators take the loss by position."""
    if isinstance(value, Mapping):
        return f"; {HINTS['params']}"
    if callable(value):
        return ", whose methods value, gradient and hessian compute what such a function returns: see help(dboost.losses.Loss)"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"; for a number of iterations give max_iter={value}" if is_number else ""


def similar_losses(name: str, known: Collection[str]) -> list[str]:
    """Return what an unknown name of a loss may mean: the loss of that name in another library, or a similar name."""
    known_losses = [loss for loss, names in LOSSES_OF_PEERS.items() if name.lower() in names]
    return known_losses or difflib.get_close_matches(name.lower(), known, n=1)


def accepts_peer_names(
    function: F | None = None,
    *,
    aliases: Mapping[str, str] = ALIASES,
    hints: Mapping[str, str] = HINTS,
    belongs: Callable[[str], str | None] = lambda _: None,
) -> Any:
    """Decorate a function: it accepts names of other libraries for the keywords in its signature; see `with_our_names`."""
    if function is None:
        return partial(accepts_peer_names, aliases=aliases, hints=hints, belongs=belongs)
    parameters = inspect.signature(function).parameters
    rest = {name for name, parameter in parameters.items() if parameter.kind is parameter.VAR_KEYWORD}
    names = tuple(name for name in parameters if name not in rest)
    known = frozenset(names)
    required = [
        name
        for name in names
        if parameters[name].default is inspect.Parameter.empty
        and parameters[name].kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    most = math.inf
    if not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values()):
        most = sum(parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD) for parameter in parameters.values())

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if len(args) > most:
            raise _too_many(function, parameters, args)
        if not known.issuperset(keywords):
            by_position, handed_on = dict(zip(names, args, strict=False)), {}
            if rest:  # to a function that knows more names
                handed_on = {name: keywords.pop(name) for name in [*keywords] if known.isdisjoint((name, aliases.get(name)))}
            keywords = with_our_names(keywords | by_position, known, aliases=aliases, hints=hints, belongs=belongs)
            keywords = {name: value for name, value in keywords.items() if name not in by_position} | handed_on
        try:
            return function(*args, **keywords)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # of the call itself
                missing = [name for name in required if name not in names[: len(args)] and name not in keywords]
                if missing:
                    raise _too_few(function, required, missing) from None
            raise

    return call


def _too_few(function: Callable[..., Any], required: Sequence[str], missing: Sequence[str]) -> InputTypeError:
    """Return the error for arguments without which a function cannot be called."""
    verb = "is" if len(missing) == 1 else "are"
    call = f"{function.__name__}({', '.join(name for name in required if name != 'self')})"
    return InputTypeError(f"{' and '.join(missing)} {verb} missing: call {call}")


def _too_many(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], args: Sequence[Any]) -> InputTypeError:
    """Return the error for more arguments by position than a function takes."""
    name, n_given = function.__name__, len(args)
    names = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if names[:1] == ["self"]:
        name = type(args[0]).__name__ if name == "__init__" else name
        names, n_given = names[1:], n_given - 1
    if any(isinstance(value, Mapping) for value in args):
        advice = HINTS["params"]
    elif hasattr(args[0], "scheduler_info"):
        advice = f"give the client by name, {function.__name__}({', '.join(names)}, client=client)"
    else:
        others = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
        advice = f"give the others by name{f', such as {others[0]}=…' if others else ''}"
    takes = f"{name} takes {' and '.join([', '.join(names[:-1]), *names[-1:]] if names[1:] else names) or 'no argument'}"
    return InputTypeError(f"{takes} by position, and {n_given} arguments were given: {advice}")


def serves_peer_names(cls: C) -> C:
    """Decorate a class of models: its public methods accept names of other libraries, see `accepts_peer_names`. Methods that
    are decorated themselves keep their tables."""
    for name, member in [*vars(cls).items()]:
        if inspect.isfunction(member) and not name.startswith("_") and not hasattr(member, "__wrapped__"):
            setattr(cls, name, accepts_peer_names(member, aliases=MODEL_ALIASES, hints=MODEL_HINTS))
    return cls


#: Decorates the methods that predict.
accepts_names_of_predictions = partial(accepts_peer_names, aliases=PREDICTION_ALIASES, hints=PREDICTION_HINTS)
#: Decorates the methods that interpret the trees, whose results have no offset.
accepts_names_of_trees = partial(accepts_peer_names, aliases=TREE_ALIASES, hints=TREE_HINTS)
#: Decorates the methods that predict intervals.
accepts_names_of_intervals = partial(accepts_peer_names, aliases=PREDICTION_ALIASES, hints=INTERVAL_HINTS)
