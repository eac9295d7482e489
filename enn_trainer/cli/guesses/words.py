"""Words of other libraries for commands and their options."""

COMMANDS_OF_OTHER_LIBRARIES = {
    "bench": "profile",
    "benchmark": "profile",
    "check_env": "check",
    "continue": "resume",
    "create": "init",
    "demo": "watch",
    "describe": "inspect",
    "diagnose": "doctor",
    "convert": "export",
    "enjoy": "watch",
    "env": "envs",
    "evaluate": "eval",
    "fit": "train",
    "info": "inspect",
    "learn": "train",
    "list": "envs",
    "logs": "plot",
    "ls": "runs",
    "hyperopt": "tune",
    "new": "init",
    "optimize": "tune",
    "record": "play",
    "render": "watch",
    "replay": "watch",
    "restore": "resume",
    "show": "inspect",
    "sweep": "tune",
    "test": "eval",
    "validate": "check",
    "view": "watch",
    "visualize": "watch",
}
"""Command with the meaning of a word of another library."""

SEARCH = {
    "optim.lr=": ["optim.lr=loguniform 1e-4 1e-2"],
    "eval.": ["eval.episodes=32"],
    "--metric": ["--metric", "eval/episodic_reward.mean max"],
    "--trials": ["--trials", "20"],
}
"""Words of a search, by the beginning of a word that stands for them."""
TUNE = "enn tune"
"""Option of a command that trains, for a search."""
_COPY = "tar -czf {name}.tar.gz {}"
UNAVAILABLE = {
    "delete": ("a run is a folder", "rm -r {}"),
    "publish": ("a run is a folder to copy", _COPY),
    "push": ("a run is a folder to copy", _COPY),
    "push_to_hub": ("a run is a folder to copy", _COPY),
    "rm": ("a run is a folder", "rm -r {}"),
    "tensorboard": ("it is a program of its own", "tensorboard --logdir {}"),
    "upload": ("a run is a folder to copy", _COPY),
}
"""Commands of other libraries without a counterpart: the nearest way, and a line for it."""

ALGORITHMS = {"a2c", "dqn", "ppo", "ppo2", "recurrentppo", "appo", "sac", "trpo"}
"""Names of algorithms that other libraries expect; here the algorithm is PPO."""

_NOTHING = dict.fromkeys(
    ("algo", "algorithm", "p", "progress", "progress_bar", "sampler", "pruner", "n_trials"), ""
)
_FOLDERS = [
    *("checkpoint_dir", "f", "log_dir", "log_folder", "log_path", "logdir", "o", "out", "out_dir"),
    *("output", "output_dir", "results_dir", "save_dir", "save_path"),
]
_NAMES = ("exp_name", "experiment_name", "run_id", "run_name", "exp_id")
_SAVES = [
    *("checkpoint", "i", "load", "load_checkpoint", "load_model", "load_model_path", "load_path"),
    *("load_run", "model", "model_path", "pretrained", "restore", "trained_agent"),
]
SETTINGS = "{} ..."
"""Option followed by settings, as in `--hyperparams n_steps:128 learning_rate:0.01`."""
_TRAIN_OPTIONS = {
    **_NOTHING,
    **dict.fromkeys(_FOLDERS, "--checkpoint-dir {}"),
    **dict.fromkeys(_NAMES, "--checkpoint-dir runs/{}"),
    **dict.fromkeys(_SAVES, "--init-from {}"),
    "hyperparameters": SETTINGS,
    "hyperparams": SETTINGS,
    "initialize_from": "--init-from runs/{}",
    "n": "--total-timesteps {}",
    "no_save_model": "--no-save",
    "params": SETTINGS,
    "optimize": TUNE,
    "resume_path": "--resume-from {}",
    "seeds": "for seed in $(seq {}); do {{}} --seed $seed; done",
}
_EPISODES = ("n", "n_episodes", "num_episodes", "n_eval_episodes", "eval_episodes", "episode_count")
_DEFAULTS = ("device", "exp_id", "load_best", "load_model_path", "no_render", "stochastic")
_PLAY_OPTIONS = {
    **_NOTHING,
    **dict.fromkeys(_DEFAULTS, ""),
    **dict.fromkeys(_EPISODES, "--episodes {}"),
    "greedy": "--deterministic",
    "n_envs": "--num-envs {}",
    "n_timesteps": "--max-steps {}",
}
OPTIONS_OF_OTHER_LIBRARIES = {
    "clone": _NOTHING,
    "eval": {**_PLAY_OPTIONS, "render": "--replay replay.html", "save_video": "--video video.gif"},
    "profile": _NOTHING,
    "resume": _NOTHING,
    "train": _TRAIN_OPTIONS,
    "export": {**_NOTHING, "onnx": "", "output": "--to {}", "opset_version": "--opset {}"},
    "tune": {**_NOTHING, "n_jobs": "--jobs {}", "n_trials": "--trials {}"},
    "watch": {**_PLAY_OPTIONS, "render": "", "save_video": ""},
}
"""Options to type for words of other libraries, by command and word, with {} for the value."""

SWITCHES = {
    *("capture_video", "cpu", "gpu", "greedy", "load_best", "no_cuda", "no_render"),
    *("no_save_model", "norm_reward", "normalize_advantage", "normalize_reward", "optimize", "p"),
    *("progress", "progress_bar", "record_video", "recurrent", "render", "rnn", "save_video"),
    *("stochastic", "use_cuda", "use_lstm", "use_memory", "use_rnn", "use_wandb", "video", "wandb"),
}
"""Words that take no value, unless it is true or false."""
WITH_VALUE = {"device"}
"""Words with a value, for settings that are true or false."""
