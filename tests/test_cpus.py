"""CPUs of a process: control groups, and variables that the user has set."""

import platform

import pytest

from hf_vanilla import cpus


def write_tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a.slice/b.scope\n",
                "sys/fs/cgroup/a.slice/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/a.slice/b.scope/cpu.max": "max 100000\n",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/y\n",
                "sys/fs/cgroup/cpu/docker/y/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/docker/y/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
    ],
    ids=["no control groups", "no limit", "version 2", "limit of a parent", "version 1"],
)
def test_cpu_quota_is_the_lowest_limit_of_the_control_groups(tmp_path, files, quota):
    write_tree(tmp_path, files)
    assert cpus.cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "3000", "OMP_NUM_THREADS": "2"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7", "OMP_NUM_THREADS": "2"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "2"}),
        ({"OMP_NUM_THREADS": "5"}, {"GOMP_SPINCOUNT": "3000", "OMP_NUM_THREADS": "5"}),
        (
            {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "9"},
            {
                "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "9",
                "GOMP_SPINCOUNT": "3000",
                "OMP_NUM_THREADS": "2",
            },
        ),
    ],
    ids=str,
)
def test_threads_follow_the_quota_unless_the_user_has_set_them(
    tmp_path, monkeypatch, given, expected
):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "130000 100000\n"}
    write_tree(tmp_path, files)
    monkeypatch.setattr(cpus, "_cpus_of_process", lambda: 16)
    cpus.limit_torch(given, tmp_path)
    assert given == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "48", **expected}


def test_training_in_few_shapes_keeps_their_products_unless_the_user_has_set_a_number():
    for number, expected in (("48", "2400"), ("9", "9")):
        environment = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": number}
        cpus.keep_compiled_products(environment, 24)
        assert environment == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": expected}
    environment = {}  # a program that imports the package: oneDNN has its own number
    cpus.keep_compiled_products(environment, 24)
    assert environment == {}


def test_without_a_quota_the_number_of_threads_is_left_to_torch(tmp_path):
    environment = {}
    cpus.limit_torch(environment, tmp_path)
    assert environment == {"GOMP_SPINCOUNT": "3000", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "48"}


@pytest.mark.parametrize(
    ("modes", "given", "expected"),
    [
        ("always [madvise] never", None, "1"),
        ("always [madvise] never", "0", "0"),
        ("[always] madvise never", None, None),
        ("always madvise [never]", None, None),
    ],
)
def test_torch_asks_for_huge_pages_where_linux_gives_them_to_programs_that_ask(
    tmp_path, modes, given, expected
):
    write_tree(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": modes + "\n"})
    environment = {} if given is None else {"THP_MEM_ALLOC_ENABLE": given}
    cpus.limit_torch(environment, tmp_path)
    assert environment.get("THP_MEM_ALLOC_ENABLE") == expected


HELD = """
from hf_vanilla.cpus import return_freed_memory

def held():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024

largest = bytearray(24 << 20)
del largest
before, small, large = held(), [], []
for _ in range(40):  # a small array that stays behind each large one
    large.append(bytearray(b"a") * (2 << 20))
    small.append(bytearray(b"a") * 5000)
large.clear()
print(held() - before)
return_freed_memory()
print(held() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a function of glibc")
def test_freed_arrays_between_others_leave_the_process(program):
    found = program("python", "-c", HELD)
    freed, returned = map(float, found.stdout.split())
    assert freed > 20  # glibc keeps such gaps, since a larger array has raised its limit
    assert returned < 5
