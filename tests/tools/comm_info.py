#!/usr/bin/env python3
"""What comm-info tells, and that docs/environment.md is what it tells.

comm_info.py COMM-INFO COMMRUN HELLO SOURCE-FOLDER NCCL-PLUGIN-FOLDER OTHER-PLUGINS-FOLDER STANDIN-FOLDER
    CHAOS-PLUGIN-FOLDER MPI-PLUGIN-FOLDER
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

COMM_INFO, COMMRUN, HELLO = sys.argv[1:4]
SOURCE = pathlib.Path(sys.argv[4])
WITH_NCCL = {"COMM_PLUGIN_PATH": sys.argv[5]}
WITH_OURS = {"COMM_PLUGIN_PATH": f"{sys.argv[5]}:{sys.argv[9]}:{sys.argv[8]}"}
WITH_OTHERS = {"COMM_PLUGIN_PATH": sys.argv[6]}
STANDIN = pathlib.Path(sys.argv[7])
ON_STANDIN = {**WITH_NCCL, "COMM_NCCL_CUDART": str(STANDIN / "libstandin_cudart.so"),
              "COMM_NCCL_LIBRARY": str(STANDIN / "libstandin_nccl_22809.so")}
LIMIT_S = 30
BARE = {name: value for name, value in os.environ.items()
        if name in ("PATH", "LD_LIBRARY_PATH") or name.endswith("SAN_OPTIONS")}


def run(*words, env=None, command=(COMM_INFO,)):
    done = subprocess.run([*command, *words], env={**BARE, **(env or {})}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


def told(*words, **options):
    status, out, err = run(*words, **options)
    if status != 0 or err:
        raise AssertionError(f"comm-info {words}: status {status}\n{err}")
    return out


class Info(unittest.TestCase):
    maxDiff = None

    def test_the_environment_s_table_is_up_to_date(self):
        table, text = told("--markdown", env=WITH_OURS), (SOURCE / "docs/environment.md").read_text()
        if "COMM_MPI_" not in table: # where no MPI is installed
            text = re.sub(r"(?m)^\| `COMM_MPI_.*\n", "", text)
        self.assertEqual(text, table,
                         "docs/environment.md is to be made anew: "
                         "COMM_PLUGIN_PATH=build/backend_nccl:build/backend_mpi:build/tools/chaos "
                         "build/tools/comm-info --markdown > docs/environment.md")

    def test_every_parameter_of_the_sources_is_told(self):
        known = [(p["scope"], p["name"], p["env"]) for p in json.loads(told("--json", env=WITH_OURS))["parameters"]]
        tables = [("core", "COMM_", "core/common/base/param.def"), ("tcp", "COMM_TCP_", "backend_tcp/param.def"),
                  ("shm", "COMM_SHM_", "backend_shm/param.def"), ("nccl", "COMM_NCCL_", "backend_nccl/param.def")]
        if any(scope == "mpi" for scope, _, _ in known): # an MPI is installed
            tables.append(("mpi", "COMM_MPI_", "backend_mpi/param.def"))
        tables.append(("chaos", "COMM_CHAOS_", "tools/chaos/param.def"))
        rows = [(scope, name, f"{prefix}{name.upper()}") for scope, prefix, table in tables
                for name in re.findall(r'^PARAM_\w+\("(\w+)"', (SOURCE / table).read_text(), re.M)]
        self.assertGreater(len(rows), 10)
        self.assertEqual(known, rows)
        text, plain = told("--parameters", env=WITH_OURS), told(env=WITH_OURS)
        for scope, name, env in rows:
            self.assertRegex(text, rf"(?m)^ +{env} +{scope}\.{name} +=")
            self.assertIn(env, plain)

    def test_every_algorithm_of_the_sources_is_told(self):
        rows = re.findall(r"^ALGO\((\w+), (\w+),", (SOURCE / "core/exec/algo.def").read_text(), re.M)
        lines = json.loads(told("--json"))["routes"]["tcp"]
        self.assertGreater(len(rows), 10)
        routes = told("--routes")
        for op, name in rows:
            self.assertRegex(routes, rf"(?m)^ +{op} +{name} ")
        for line in lines:
            self.assertIn(line, routes)

    def test_values_in_force_and_where_they_come_from(self):
        parameters = {p["env"]: p for p in json.loads(told("--json", env={"COMM_TCP_LANES": "7"}))["parameters"]}
        self.assertEqual((parameters["COMM_TCP_LANES"]["value"], parameters["COMM_TCP_LANES"]["default"]), ("7", "4"))
        self.assertRegex(told("--parameters", env={"COMM_TCP_LANES": "7"}), r"COMM_TCP_LANES +tcp\.lanes += 7 ")
        self.assertRegex(told("--parameters", env={"COMM_TCP_LANES": "many"}), r"COMM_TCP_LANES +tcp\.lanes += 4 ")

    def test_a_secret_stays_one(self):
        for words in ((), ("--json",), ("--parameters",), ("--markdown",)):
            self.assertNotIn("hush-hush", told(*words, env={"COMM_SECRET": "hush-hush"}), words)

    def test_backends_and_why_others_cannot_be_used(self):
        info = json.loads(told("--json"))
        tcp = next(b for b in info["backends"] if b["name"] == "tcp")
        self.assertEqual(tcp["traits"], "keeps_deadlines, notices_loss, checks_signatures")
        self.assertRegex(told(), r"(?m)^  tcp .*; traits: keeps_deadlines, ")
        self.assertEqual((tcp["usable"], tcp["reason"], tcp["devices"], tcp["origin"]), (True, None, "cpu", "built in"))
        self.assertRegex(info["version"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(told(), rf"(?m)^libcomm {re.escape(info['version'])}, reduction kernels: {info['kernels']}$")
        for backend in info["backends"]:
            self.assertEqual(backend["usable"], backend["reason"] is None, backend)

    def test_what_auto_takes(self):
        self.assertEqual(json.loads(told("--json"))["auto"], {"cpu": ["shm", "shm-tcp", "tcp"]})
        self.assertRegex(told(), r"(?m)^auto, which is the default for the cpu: .*\n  cpu +shm, shm-tcp, tcp\n")
        self.assertIn("the default for the cpu (but here COMM_BACKEND is 'cpu:tcp'): a group",
                      told(env={"COMM_BACKEND": "cpu:tcp"}))
        self.assertEqual(json.loads(told("--json", env=ON_STANDIN))["auto"]["cuda"], ["nccl"])

    def test_a_tuning_file(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("# mine\n\ntcp ranks=2 all_reduce:ring # once\nshm barrier:direct\n")
            file.flush()
            routes = json.loads(told("--json", env={"COMM_TUNING": file.name}))["routes"]
            self.assertEqual(routes["tcp"][:2], [f"rules of COMM_TUNING={file.name}, which go before those below:",
                                                 "  tcp ranks=2 all_reduce:ring # once"])
            self.assertEqual(routes["shm"][1], "  shm barrier:direct")
        self.assertIn("COMM_TUNING=/no/such: cannot read it: ", told("--routes", env={"COMM_TUNING": "/no/such"}))

    def test_plugins_are_loaded_and_say_why_they_cannot_be_used(self):
        reasons = {}
        for backend in json.loads(told("--json", env=WITH_OTHERS))["backends"]:
            reasons[backend["name"]] = backend["reason"]
        for name, words in {"lacking": "group_abort", "newer": "ABI", "refusing": "no such hardware",
                            "entryless": "does not export", "twofold.a": "liba is not installed",
                            "twofold.c": "not taken", "hopeless.x": "libx is not installed"}.items():
            self.assertIn(words, reasons[name])
        self.assertIsNone(reasons["good"])
        self.assertIsNone(reasons["twofold"])

    def test_the_library_that_is_missing_is_named(self):
        nccl = {"COMM_NCCL_LIBRARY": "/no/such/nccl.so"}
        for env, words in (({"COMM_NCCL_CUDART": "/no/such/cudart.so"},
                            ["the CUDA runtime is missing: /no/such/cudart.so", "COMM_NCCL_CUDART"]),
                           ({**ON_STANDIN, **nccl}, ["NCCL is missing: /no/such/nccl.so", "COMM_NCCL_LIBRARY"])):
            told_json = json.loads(told("--json", env={**WITH_NCCL, **env}))
            backend = next(b for b in told_json["backends"] if b["name"] == "nccl")
            self.assertFalse(backend["usable"])
            self.assertEqual((backend["devices"], "nccl" in told_json["routes"]), ("cuda", False))
            for word in words:
                self.assertIn(word, backend["reason"])

    def test_versions_and_routes_where_the_libraries_are(self):
        told_json = json.loads(told("--json", env=ON_STANDIN))
        backend = next(b for b in told_json["backends"] if b["name"] == "nccl")
        self.assertEqual((backend["usable"], backend["reason"]), (True, None))
        self.assertRegex(told_json["routes"]["nccl"][0],
                         r"^NCCL 2\.28\.9 \(.*libstandin_nccl_22809\.so\), CUDA runtime 1")
        self.assertIn("routes of nccl:", told("--routes", env=ON_STANDIN))

    def test_a_program_that_names_no_gpu_loads_no_plugin(self):
        for command in ((COMM_INFO,), (COMMRUN, "-n", "1", "--", HELLO)):
            status, out, err = run(command=command, env={**WITH_NCCL, "LD_DEBUG": "files"})
            self.assertEqual(status, 0, err)
            loaded = re.search(r"libcomm_nccl|libcudart|libnccl", out + err) is not None
            self.assertEqual(loaded, command == (COMM_INFO,), command)

    def test_the_launcher(self):
        self.assertEqual(json.loads(told("--json"))["launcher"]["name"], "none")
        self.assertIn("launcher: none", told())
        lines = told("-n", "2", "--no-prefix", COMM_INFO, command=(COMMRUN,)).splitlines()
        self.assertEqual(sorted(line for line in lines if line.startswith("launcher")),
                         [f"launcher: commrun, rank {r} of 2" for r in range(2)])
        wrong = {"RANK": "5", "WORLD_SIZE": "2"}
        self.assertIn("RANK is 5", json.loads(told("--json", env=wrong))["launcher"]["error"])
        self.assertIn("launcher: RANK is 5", told(env=wrong))

    def test_the_command_line(self):
        self.assertIn("--markdown", told("--help"))
        self.assertRegex(told("--version"), r"^\d+\.\d+\.\d+\n$")
        for words in (["--bogus"], ["word"]):
            status, out, err = run(*words)
            self.assertEqual((status, out), (2, ""))
            self.assertIn(words[0], err)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_output_that_cannot_be_written_is_a_failure(self):
        for words in ((), ("--json",), ("--markdown",), ("--routes",)):
            with open("/dev/full", "w") as full:
                done = subprocess.run([COMM_INFO, *words], env=BARE, stdout=full, stderr=subprocess.PIPE,
                                      timeout=LIMIT_S)
            self.assertEqual((done.returncode, done.stderr), (1, b"comm-info: the output could not be written\n"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
