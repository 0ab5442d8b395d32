"""Say where the names of PyTorch's import places live here: one table from place to home. Pure data, no imports.

A program for PyTorch is ported by writing `resilin` for `torch` in its imports. Most places are modules of their own;
those whose code lives elsewhere, often on a higher floor, are entries of these tables. A part that is new adds a line:
`place_finder.py` makes the import system follow it, `scripts/type_stubs.py` type checkers, and `check_floors.py` reads
imports by it. Paths are below `resilin`. Names stand in one string for each home; `new=old` renames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# A place that is another module under PyTorch's name, with all that is below it: place -> home.
SAME: dict[str, str] = {
    "_dynamo": "compiler.dynamo",
    "_dynamo.config": "compiler.settings",
    "_inductor.config": "compiler.settings",
    "autograd.profiler": "profiler.autograd_profiler",
    "compiler.config": "compiler.settings",
    "cuda.random": "cuda",
    "dist": "distributed",
    "distributed.algorithms.ddp_comm_hooks": "ddp.comm_hooks",
    "distributed.algorithms.model_averaging": "ddp.model_averaging",
    "distributed.autograd": "rpc.autograd",
    "distributed.checkpoint": "checkpoint",
    "distributed.distributed_c10d": "distributed",
    "distributed.elastic": "elastic",
    "distributed.launch": "launcher.entry",
    "distributed.launcher.api": "launcher.api",
    "distributed.nn": "rpc.nn",
    "distributed.rpc": "rpc",
    "distributed.optim.optimizer": "rpc.optim.optimizer",
    "distributed.optim.utils": "rpc.optim.utils",
    "distributed.pipeline.sync": "pipeline.sync",
    "distributed.pipelining": "pipeline",
    "distributed.run": "launcher.entry",
    "return_types": "core.return_types",
    "utils.data": "data",
}

_BATCH_NORM = "BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm"
_INSTANCE_NORM = "InstanceNorm1d InstanceNorm2d InstanceNorm3d"
_LAZY_BATCH_NORM = "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d"
_LAZY_CONV = "LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d"
_LAZY_INSTANCE_NORM = "LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d"

# A place without a file of its own, which gathers names of other modules: place -> {home: names}.
GATHERED: dict[str, dict[str, str]] = {
    "_C": {
        "core.public.dispatch": "_disabled_torch_function_impl=disabled",
        "overrides": "DisableTorchFunction DisableTorchFunctionSubclass",
    },
    "_C._profiler": {"profiler": "ProfilerActivity", "profiler.config": "_ExperimentalConfig"},
    "_inductor": {},  # a package for `config`
    "_utils": {
        "utils.dense_tensors": "ExceptionWrapper _element_size _flatten_dense_tensors _get_all_device_indices "
        "_get_available_device_type _get_device_index _rebuild_parameter _rebuild_parameter_with_state _rebuild_tensor "
        "_rebuild_tensor_v2 _rebuild_tensor_v3 _reorder_tensors_as _take_tensors _unflatten_dense_tensors"
    },
    "accelerator.memory": {
        "accelerator": "empty_cache get_memory_info max_memory_allocated max_memory_reserved memory_allocated "
        "memory_reserved memory_stats reset_peak_memory_stats"
    },
    "autograd.anomaly_mode": {"autograd": "detect_anomaly set_detect_anomaly"},
    "autograd.gradcheck": {"core.autograd.gradcheck": "GradcheckError gradcheck gradgradcheck"},
    "autograd.profiler_util": {
        "profiler.event_list": "EventList",
        "profiler.formatting": "_format_memory=format_memory _format_time=format_time "
        "_format_time_share=format_time_share",
        "profiler.function_events": "EventMetadata FormattedTimesMixin FunctionEvent FunctionEventAvg Interval Kernel",
        "profiler.memory_records": "MemRecordsAcc",
    },
    "autograd.variable": {"autograd": "Variable"},
    "cpu": {},  # a package for `amp`
    "cpu.amp": {"amp": "GradScaler", "amp.older": "autocast=CpuAutocast"},
    "cpu.amp.autocast_mode": {"amp.older": "autocast=CpuAutocast"},
    "cpu.amp.grad_scaler": {"amp": "GradScaler"},
    "cuda.amp": {
        "amp": "GradScaler",
        "amp.older": "amp_definitely_not_available autocast=CudaAutocast custom_bwd custom_fwd",
    },
    "cuda.amp.autocast_mode": {"amp.older": "autocast=CudaAutocast custom_bwd custom_fwd"},
    "cuda.amp.common": {"amp.older": "amp_definitely_not_available"},
    "cuda.amp.grad_scaler": {"amp": "GradScaler"},
    "cuda.graphs": {"cuda": "is_current_stream_capturing"},
    "cuda.streams": {"cuda": "Event ExternalStream Stream"},
    "distributed.checkpoint.state_dict_loader": {"checkpoint": "load"},
    "distributed.checkpoint.state_dict_saver": {"checkpoint": "save"},
    "distributed.constants": {"distributed": "default_pg_timeout"},
    "distributed.elastic.multiprocessing": {},  # a package for `errors`
    "distributed.elastic.multiprocessing.errors": {"elastic": "record", "errors": "ChildFailedError"},
    "distributed.elastic.rendezvous.api": {"errors": "RendezvousError"},
    "distributed.launcher": {"launcher.api": "LaunchConfig elastic_launch launch_agent"},
    "distributed.optim": {
        "ddp.model_averaging": "PostLocalSGDOptimizer",
        "rpc.optim": "DistributedOptimizer _FunctionalASGD _FunctionalAdadelta _FunctionalAdagrad _FunctionalAdam "
        "_FunctionalAdamW _FunctionalAdamax _FunctionalLion _FunctionalNAdam _FunctionalRAdam _FunctionalRMSprop "
        "_FunctionalRprop _FunctionalSGD as_functional_optim",
        "zero": "ZeroRedundancyOptimizer",
    },
    "distributed.optim.functional_adadelta": {"rpc.optim.functional": "_FunctionalAdadelta"},
    "distributed.optim.functional_adagrad": {"rpc.optim.functional": "_FunctionalAdagrad"},
    "distributed.optim.functional_adam": {"rpc.optim.functional": "_FunctionalAdam"},
    "distributed.optim.functional_adamax": {"rpc.optim.functional": "_FunctionalAdamax"},
    "distributed.optim.functional_adamw": {"rpc.optim.functional": "_FunctionalAdamW"},
    "distributed.optim.functional_rmsprop": {"rpc.optim.functional": "_FunctionalRMSprop"},
    "distributed.optim.functional_rprop": {"rpc.optim.functional": "_FunctionalRprop"},
    "distributed.optim.functional_sgd": {"rpc.optim.functional": "_FunctionalSGD"},
    "distributed.optim.post_localSGD_optimizer": {"ddp.model_averaging": "PostLocalSGDOptimizer"},
    "distributed.optim.zero_redundancy_optimizer": {"zero": "ZeroRedundancyOptimizer"},
    "distributed.pipeline": {},  # a package for `sync`
    "distributed.rendezvous": {"distributed": "register_rendezvous_handler rendezvous"},
    "distributions.beta": {"distributions.dirichlet": "Beta"},
    "distributions.binomial": {"distributions.bernoulli": "Binomial"},
    "distributions.chi2": {"distributions.gamma": "Chi2"},
    "distributions.fishersnedecor": {"distributions.gamma": "FisherSnedecor"},
    "distributions.generalized_pareto": {"distributions.exponential": "GeneralizedPareto"},
    "distributions.geometric": {"distributions.bernoulli": "Geometric"},
    "distributions.gumbel": {"distributions.uniform": "Gumbel"},
    "distributions.half_cauchy": {"distributions.cauchy": "HalfCauchy"},
    "distributions.half_normal": {"distributions.normal": "HalfNormal"},
    "distributions.inverse_gamma": {"distributions.gamma": "InverseGamma"},
    "distributions.kumaraswamy": {"distributions.dirichlet": "Kumaraswamy"},
    "distributions.laplace": {"distributions.cauchy": "Laplace"},
    "distributions.lkj_cholesky": {"distributions.wishart": "LKJCholesky"},
    "distributions.log_normal": {"distributions.normal": "LogNormal"},
    "distributions.logistic_normal": {"distributions.normal": "LogisticNormal"},
    "distributions.multinomial": {"distributions.categorical": "Multinomial"},
    "distributions.negative_binomial": {"distributions.bernoulli": "NegativeBinomial"},
    "distributions.one_hot_categorical": {
        "distributions.categorical": "OneHotCategorical OneHotCategoricalStraightThrough"
    },
    "distributions.pareto": {"distributions.exponential": "Pareto"},
    "distributions.relaxed_bernoulli": {"distributions.relaxed": "LogitRelaxedBernoulli RelaxedBernoulli"},
    "distributions.relaxed_categorical": {"distributions.relaxed": "ExpRelaxedCategorical RelaxedOneHotCategorical"},
    "distributions.studentT": {"distributions.gamma": "StudentT"},
    "distributions.weibull": {"distributions.exponential": "Weibull"},
    "functional": {
        "core.public.names": "atleast_1d atleast_2d atleast_3d block_diag broadcast_shapes broadcast_tensors "
        "cartesian_prod cdist chain_matmul einsum istft meshgrid norm split stft tensordot unique unique_consecutive "
        "unravel_index",
        "linalg.older": "lu pca_lowrank svd_lowrank",
    },
    "nn.modules.batchnorm": {
        "nn": f"{_BATCH_NORM} {_LAZY_BATCH_NORM}",
        "nn.modules.lazy_layers": "_LazyNormBase=_LazyNorm",
        "nn.modules.normalization": "_BatchNorm _NormBase=NormWithStatistics",
    },
    "nn.modules.channelshuffle": {"nn": "ChannelShuffle"},
    "nn.modules.fold": {"nn": "Fold Unfold"},
    "nn.modules.instancenorm": {
        "nn": f"{_INSTANCE_NORM} {_LAZY_INSTANCE_NORM}",
        "nn.modules.normalization_instance": "_InstanceNorm",
    },
    "nn.modules.linear_cross_entropy": {"nn": "LinearCrossEntropyLoss"},
    "nn.modules.pixelshuffle": {"nn": "PixelShuffle PixelUnshuffle"},
    "nn.modules.sparse": {"nn": "Embedding EmbeddingBag"},
    "nn.parallel": {
        "ddp": "DistributedDataParallel",
        "ddp.old_names": "DistributedDataParallelCPU",
        "nn": "DataParallel",
        "nn.modules.data_parallel": "data_parallel",
    },
    "nn.parallel.data_parallel": {"nn": "DataParallel", "nn.modules.data_parallel": "data_parallel"},
    "nn.parallel.distributed": {"ddp": "DistributedDataParallel"},
    "nn.utils.init": {"nn.utils": "skip_init"},
    "nn.utils.spectral_norm": {
        "nn.utils": "remove_spectral_norm spectral_norm",
        "nn.utils.norm_hooks": "SpectralNorm=_SpectralNormHook",
    },
    "nn.utils.weight_norm": {
        "nn.utils": "remove_weight_norm weight_norm",
        "nn.utils.norm_hooks": "WeightNorm=_WeightNormHook",
    },
    "serialization": {
        "core.safe_globals": "add_safe_globals clear_safe_globals get_safe_globals safe_globals",
        "core.serialize": "load save",
    },
    "signal.windows.windows": {
        "signal.windows": "bartlett blackman cosine exponential gaussian general_cosine general_hamming hamming hann "
        "kaiser nuttall"
    },
    "storage": {"core.api.conversion.layouts": "UntypedStorage"},
    "torch_version": {"as_torch.torch_version": "TorchVersion"},
    "utils.data._utils": {},  # a package for `collate`
    "utils.data._utils.collate": {"data": "default_collate default_convert"},
    "utils.data.dataloader": {"data": "DataLoader default_collate default_convert get_worker_info"},
    "utils.hooks": {"core.state.hooks": "RemovableHandle"},
    "utils.model_zoo": {"hub": "load_url=load_state_dict_from_url tqdm"},
}

# Names that a module has beside those of its own file, which come first: module -> {home: names}.
ADDED: dict[str, dict[str, str]] = {
    "distributed": {"ddp": "GradBucket"},
    "elastic.rendezvous": {"errors": "RendezvousError"},
    "fft": {"core.tensor": "Tensor"},
    "nn.modules": {
        "nn": "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d "
        "AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss "
        f"{_BATCH_NORM} Bilinear CELU CTCLoss ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d "
        "ConstantPad2d ConstantPad3d Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d "
        "CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss CrossMapLRN2d Dropout Dropout1d Dropout2d Dropout3d ELU "
        "Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold FractionalMaxPool2d FractionalMaxPool3d GELU GLU GRU "
        "GRUCell GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss HuberLoss "
        f"Identity {_INSTANCE_NORM} KLDivLoss L1Loss LPPool1d LPPool2d LPPool3d LSTM LSTMCell LayerNorm "
        f"{_LAZY_BATCH_NORM} {_LAZY_CONV} {_LAZY_INSTANCE_NORM} LazyLinear LeakyReLU Linear LinearCrossEntropyLoss "
        "LocalResponseNorm LogSigmoid LogSoftmax MSELoss MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d "
        "MaxUnpool2d MaxUnpool3d Mish Module ModuleDict ModuleList MultiLabelMarginLoss MultiLabelSoftMarginLoss "
        "MultiMarginLoss MultiheadAttention NLLLoss NLLLoss2d PReLU PairwiseDistance ParameterDict ParameterList "
        "PixelShuffle PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNBase RNNCell RNNCellBase RReLU ReLU ReLU6 "
        "ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU "
        "Sequential SiLU Sigmoid SmoothL1Loss SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink Softsign "
        "Tanh Tanhshrink Threshold Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder "
        "TransformerEncoderLayer TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold Upsample "
        "UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d"
    },
    "nn.modules.activation": {
        "nn": "CELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LogSigmoid Mish MultiheadAttention PReLU RReLU ReLU6 "
        "SELU Softmax2d Softmin Softshrink Softsign Tanhshrink Threshold"
    },
    "nn.modules.container": {"nn": "ParameterDict"},
    "nn.modules.conv": {"nn": _LAZY_CONV},
    "nn.modules.flatten": {"nn": "Flatten"},
    "nn.modules.linear": {"nn": "Bilinear LazyLinear"},
    "nn.modules.loss": {
        "nn": "CTCLoss CosineEmbeddingLoss GaussianNLLLoss HingeEmbeddingLoss LinearCrossEntropyLoss MarginRankingLoss "
        "MultiLabelMarginLoss MultiLabelSoftMarginLoss MultiMarginLoss PoissonNLLLoss SoftMarginLoss TripletMarginLoss "
        "TripletMarginWithDistanceLoss"
    },
    "nn.modules.normalization": {"nn": "CrossMapLRN2d LocalResponseNorm"},
    "nn.modules.rnn": {"nn": "GRUCell LSTMCell RNNCell RNNCellBase"},
}

# Places and names of PyTorch that have nothing here: what there is instead -> the places.
_INSTEAD: tuple[tuple[str, str], ...] = (
    (
        "nothing is compiled here: call the model as it is",
        "cuda.jiterator distributed.nn.jit "
        "jit.frontend jit.generate_bytecode jit.mobile jit.quantized jit.supported_ops jit.unsupported_tensor_ops "
        "nativert utils.benchmark.utils.compile utils.benchmark.utils.cpp_jit utils.jit",
    ),
    (
        "resilin has no quantization",
        "ao backends.quantized nn.intrinsic nn.qat nn.quantizable nn.quantized quantization",
    ),
    ("resilin has no tracer yet", "fx"),
    ("resilin.profiler.profile records what a program does", "autograd.profiler_legacy cuda.profiler"),
    ("resilin.profiler.profile(with_flops=True) estimates them", "utils.flop_counter"),
    ("resilin.profiler.record_function names a part of the trace", "profiler.itt"),
    (
        "resilin.profiler tells where time goes",
        "monitor profiler.python_tracer utils.module_tracker utils.throughput_benchmark",
    ),
    ("resilin.zero.shard divides parameters, gradients and optimizer state", "distributed.tensor"),
    (
        "resilin.zero.shard divides parameters, gradients and optimizer state, resilin.zero.ShardedGradScaler "
        "scales losses beside it",
        "distributed.fsdp",
    ),
    ("groups are made by resilin.distributed.new_group or new_subgroups", "distributed.device_mesh"),
    (
        "resilin.distributed has the collectives, without gradients",
        "distributed.collective_utils distributed.nn.functional",
    ),
    (
        "one process computes on one device: resilin.nn.parallel.DistributedDataParallel",
        "cuda.comm cuda.nccl nn.parallel.comm nn.parallel.gather nn.parallel.parallel_apply "
        "nn.parallel.replicate nn.parallel.scatter nn.parallel.scatter_gather",
    ),
    (
        "hooks are in the other modules of resilin.distributed.algorithms.ddp_comm_hooks",
        "distributed.algorithms.ddp_comm_hooks.mixed_precision_hooks "
        "distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks",
    ),
    (
        "optimizers of resilin.optim and resilin.distributed.optim are objects",
        "distributed.optim.apply_optimizer_in_backward distributed.optim.named_optimizer",
    ),
    (
        "resilin.checkpoint.save, load and save_async take the objects themselves",
        "distributed.checkpoint.api distributed.checkpoint.default_planner distributed.checkpoint.filesystem "
        "distributed.checkpoint.metadata distributed.checkpoint.optimizer distributed.checkpoint.planner "
        "distributed.checkpoint.planner_helpers distributed.checkpoint.resharding "
        "distributed.checkpoint.staging distributed.checkpoint.state_dict distributed.checkpoint.stateful "
        "distributed.checkpoint.utils",
    ),
    (
        "`resilin checkpoint convert` changes formats, resilin.checkpoint.import_torch reads PyTorch's",
        "distributed.checkpoint.format_utils",
    ),
    (
        "resilin.checkpoint.load_safetensors and save_safetensors read and write a model hub's files",
        "distributed.checkpoint.hf_storage distributed.checkpoint.quantized_hf_storage",
    ),
    (
        "elastic-run starts the agents, resilin.distributed.launcher.api.elastic_launch does so from a program",
        "distributed.elastic.agent.server distributed.elastic.multiprocessing.api "
        "distributed.elastic.multiprocessing.subprocess_handler distributed.argparse_util",
    ),
    (
        "elastic-run has it: --log-dir, --redirects, --tee, --event-log; docs/launcher.md",
        "distributed.elastic.events distributed.elastic.multiprocessing.redirects "
        "distributed.elastic.multiprocessing.tail_log distributed.elastic.metrics",
    ),
    (
        "elastic-run watches its workers; docs/launcher.md",
        "distributed.elastic.control_plane distributed.elastic.timer "
        "distributed.elastic.multiprocessing.errors.error_handler "
        "distributed.elastic.multiprocessing.errors.handlers distributed.elastic.utils",
    ),
    (
        "elastic-run's --rdzv-backend names the store; docs/launcher.md",
        "distributed.elastic.rendezvous.c10d_rendezvous_backend "
        "distributed.elastic.rendezvous.dynamic_rendezvous distributed.elastic.rendezvous.etcd_rendezvous "
        "distributed.elastic.rendezvous.etcd_rendezvous_backend distributed.elastic.rendezvous.etcd_server "
        "distributed.elastic.rendezvous.etcd_store distributed.elastic.rendezvous.registry "
        "distributed.elastic.rendezvous.static_tcp_rendezvous distributed.elastic.rendezvous.utils",
    ),
    (
        "`resilin trace` says which rank is missing from which collective",
        "distributed.debug distributed.flight_recorder",
    ),
    (
        "programs set up Python's own logging",
        "distributed.c10d_logger distributed.checkpoint.logger distributed.checkpoint.logging_handlers "
        "distributed.logging_handlers utils.debug_log",
    ),
    (
        "it is internal to PyTorch",
        "backends.python_native distributed.config distributed.rpc.internal distributed.rpc.rref_proxy "
        "distributed.rpc.server_process_global_profiler distributed.utils nn.backends nn.cpp "
        "nn.modules.linear_cross_entropy_options nn.utils.memory_format utils.backend_registration "
        "utils.bundled_inputs utils.cpp_backtrace utils.data.backward_compatibility utils.data.graph "
        "utils.data.graph_settings utils.file_baton utils.serialization utils.weak",
    ),
    ("resilin.library and resilin.autograd.Function make operations of functions", "utils.cpp_extension"),
    (
        "resilin computes on the CPU and on CUDA devices: resilin.cuda",
        "accelerator.graphs backends.mkldnn backends.miopen backends.xeon backends.xnnpack mps mtia "
        "utils.hipify utils.mkldnn utils.mobile_optimizer xpu",
    ),
    (
        "its library is not used: resilin.backends has the switches that programs set",
        "backends.cudnn.rnn backends.cusparselt backends.kleidiai backends.mha backends.mkl backends.nnpack "
        "backends.openmp backends.opt_einsum cuda.gds cuda.green_contexts cuda.tunable",
    ),
    (
        "resilin.nn.functional.scaled_dot_product_attention takes masks",
        "nn.attention.bias nn.attention.experimental nn.attention.flex_attention nn.attention.varlen",
    ),
    ("resilin has the random functions of the root, e.g. resilin.normal", "quasirandom"),
    (
        "resilin.checkpoint.save_safetensors writes weights that other libraries read",
        "export onnx.errors onnx.operators onnx.ops onnx.testing onnx.utils onnx.verification package "
        + " ".join(f"onnx.symbolic_opset{number}" for number in (*range(7, 11), *range(12, 21))),
    ),
    ("Python's own multiprocessing, or elastic-run, starts the processes", "numa"),
    (
        "resilin has dense tensors",
        "cuda.sparse masked nested sparse utils.benchmark.op_fuzzers.sparse_binary "
        "utils.benchmark.op_fuzzers.sparse_unary",
    ),
    ("instructions are not counted, resilin.utils.benchmark measures time", "utils.benchmark.utils.valgrind_wrapper"),
    ("programs that measure are in examples and benchmarks of the repository", "utils.benchmark.examples"),
    ("a tensor lies in an array: Tensor.numpy() shares its memory", "storage.TypedStorage"),
    ("`resilin doctor` says what is installed and in use", "utils.backcompat utils.collect_env"),
    ("`resilin checkpoint ls` shows what a file holds", "utils.model_dump utils.show_pickle utils.viz"),
    ("a resilin.data.Dataset and a DataLoader do it", "utils.data.datapipes"),
    ("its code is not part of resilin", "contrib"),
)
ABSENT: dict[str, str] = {place: instead for instead, places in _INSTEAD for place in places.split()}


def home_of(place: str) -> str | None:
    """Return the module that `place`, a path below the root, is another name of; None where it is none.

    A place below one that has another name lies below its home: `dist.algorithms.join` is
    `distributed.algorithms.join`. The longest entry counts.
    """
    head, tail = place, ""
    while head:
        if head in SAME:
            return SAME[head] + tail
        if head in GATHERED:
            return None
        head, dot, last = head.rpartition(".")
        tail = dot + last + tail
    return None


def names(homes: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the names of an entry: name -> (home, its name there)."""
    found = {}
    for home, words in homes.items():
        for word in words.split():
            name, _, there = word.partition("=")
            found[name] = home, there or name
    return found


def _below(places: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the places by the module that they are names of, or places below: module -> {name: place}."""
    found: dict[str, dict[str, str]] = {}
    for place in places:
        parent, _, name = place.rpartition(".")
        found.setdefault(home_of(parent) or parent, {})[name] = place
    return found


CHILDREN = _below((*SAME, *GATHERED))  # the module "" is the root
LACKING = _below(ABSENT)
