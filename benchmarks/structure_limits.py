"""Limits of the structure, enforced by `tests/benchmarks/test_structure.py`.

A limit is lowered with each reduction, and raised only with a decision record.
"""

EXCEPTIONS = {
    "*config.py:*": "settings: users read one list for each section of the file",
    "rogue_net/relpos*.py:RelposEncodingConfig": "settings, next to the module that reads them",
    "rogue_net/native/*": "arguments and structs of the compiled code, in its order",
    "*:Observation.__init__": "published: the keyword arguments of an observation",
    "*:ParallelEnvList.__init__": "published keyword arguments",
    "*:RecordingVecEnv.act*": "published keyword arguments",
    "*:play_by_hand": "published keyword arguments",
    "*:play_league": "published keyword arguments",
    "enn_trainer/run/trainer.py:train": "published keyword arguments",
    "enn_trainer/viewer/played.py:replay": "published keyword arguments",
    "*:StateManager.__init__": "published keyword arguments",
    "*:ArrayEnvs": "published base of environments; saved runs store digests of its code",
    "enn_trainer/checkpoints/state.py:State": "published: all that a resumed run needs",
}
"""Functions and classes that may have more parameters or attributes, with the reason."""

LAYERS = {
    "base": "base/",
    "config": "config/ stop_conditions.py",
    "runtime": "runtime/",
    "experience": "experience/",
    "curriculum": "curriculum/",
    "algorithms": "algorithms/",
    "selfplay": "selfplay/",
    "checkpoints": "checkpoints/",
    "evaluation": "evaluation/",
    "viewer": "viewer/",
    "tracking": "tracking/",
    "callbacks": "callbacks/",
    "run": "",
    "cli": "cli/ command.py",
}
"""Layers of enn_trainer, lowest first, by path prefixes; the empty one has the remaining files. A
layer may import only layers below it."""

LIMITS: dict[str, float] = {
    "modules": 362,
    "files in the largest folder": 30,
    "longest file, lines": 629,
    "lines of a function: median, 95%": 27,
    "longest function, lines": 77,
    "functions above 40 lines without a heading": 0,
    "functions of more than 8 parameters": 0,
    "classes of more than 12 attributes": 20,
    "imports between layers of enn_trainer that run up": 2,
    "modules that the trainer imports": 231,
    "modules of enn_trainer below the collector": 12,
    "circles of imports in the page": 0,
    "files that an update calls": 81,
    "checks of the kind of an action": 0,
    "files that name numbers outside its modules": 57,
    "files that name kinds outside its modules": 45,
    "files that name identity outside its modules": 15,
    "files that name past outside its modules": 12,
    "conditions in players, collector, open_run and evaluation": 80,
    "methods cat, take and slice": 38,
    "places that look into the parts of a state": 8,
    "calls with a starred name": 33,
    "names that are pronouns or participles, %": 0.2,
    "docstrings with who, whose, of which and the like, %": 0.6,
    "docstrings that open with a question word or pronoun": 0,
}
"""Maximal value of each measure that has a limit; lines are limited by folder."""

FOLDERS = {
    "enn_trainer": 849,
    "enn_trainer/algorithms": 446,
    "enn_trainer/algorithms/cloning": 324,
    "enn_trainer/algorithms/ppo": 899,
    "enn_trainer/base": 360,
<<<<<<< HEAD
    "enn_trainer/callbacks": 1049,
    "enn_trainer/checkpoints": 2998,
=======
    "enn_trainer/callbacks": 999,
    "enn_trainer/checkpoints": 3081,
>>>>>>> f52f4d0249ebab8739b6809eb4fc458fe0072bd7
    "enn_trainer/checkpoints/migrate": 984,
    "enn_trainer/cli": 3258,
    "enn_trainer/cli/guesses": 380,
    "enn_trainer/cli/starters": 277,
    "enn_trainer/cli/work": 1100,
    "enn_trainer/config": 2874,
    "enn_trainer/curriculum": 443,
    "enn_trainer/evaluation": 2060,
    "enn_trainer/experience": 2514,
    "enn_trainer/run": 2390,
    "enn_trainer/runtime": 834,
    "enn_trainer/selfplay": 873,
    "enn_trainer/tracking": 956,
    "enn_trainer/viewer": 2035,
    "entity_env": 2290,
    "entity_env/actions": 1030,
    "entity_env/adapters": 3424,
    "entity_env/examples": 2252,
    "entity_env/imports": 173,
    "entity_env/play": 599,
    "entity_env/recording": 1035,
    "entity_env/serialization": 265,
    "entity_env/testing": 939,
    "entity_env/vec": 3604,
    "rogue_net": 2434,
    "rogue_net/actions": 822,
    "rogue_net/native": 1200,
    "rogue_net/relpos": 599,
}
"""Code lines of each folder, updated with each change of the structure."""
SLACK = 1.03

BEFORE = "23 November", "28 November"
HISTORY = {
    "lines of Python code": ("26,637", "44,956"),
    "tokens of Python code": ("256,138", "446,715"),
    "lines of C code": ("1,305", "1,767"),
    "modules": ("233", "333"),
    "files in the largest folder": ("25", "30"),
    "longest file, lines": ("542", "687"),
    "lines of a function: median, 95%": ("6, 26", "6, 27"),
    "longest function, lines": ("70", "89"),
    "functions above 40 lines without a heading": ("0", "2"),
    "functions of more than 8 parameters": ("0", "7"),
    "classes of more than 12 attributes": ("4", "20"),
    "private functions called once": ("222", "357"),
    "imports between layers of enn_trainer that run up": ("8", "20"),
    "modules that the trainer imports": ("178", "254"),
    "modules of enn_trainer below the collector": ("7", "11"),
    "circles of imports in the page": ("0", "0"),
    "files that an update calls": ("63", "76"),
    "checks of the kind of an action": ("0", "0"),
    "files that name numbers outside its modules": ("21", "60"),
    "files that name kinds outside its modules": ("14", "48"),
    "files that name identity outside its modules": ("0", "15"),
    "files that name past outside its modules": ("0", "13"),
    "conditions in players, collector, open_run and evaluation": ("54", "137"),
    "methods cat, take and slice": ("28", "47"),
    "places that look into the parts of a state": ("8", "22"),
    "calls with a starred name": ("76", "188"),
    "names that are pronouns or participles, %": ("3.0", "4.4"),
    "docstrings with who, whose, of which and the like, %": ("10.0", "14.1"),
    "docstrings that open with a question word or pronoun": ("0", "0"),
    "comment lines per 100": ("1.5", "1.2"),
}
"""Values at commits 9e71a6ae and f1a030e1, of these days of 2026."""
