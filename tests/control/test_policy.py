"""Who may what: nothing by default, and a request as a whole or not at all."""

import grp
import os
import pwd
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_control.policy import Caller, Policy, Rule, load_policy
from powerd_core.errors import ConfigError, ControlDenied
from powerd_core.hold import UNITS

ME = pwd.getpwuid(os.getuid()).pw_name
MINE = grp.getgrgid(os.getgid()).gr_name
ADA = Caller(os.getuid(), frozenset({os.getgid()}))
STRANGER = Caller(os.getuid() + 1, frozenset({os.getgid() + 1}))


def knob(name="power_cap", device="gpu0", uuid="GPU-1", *, users=None, **more):
    more = {"is_shared": False, "is_untold": False, "driver": "nvml"} | more
    return SimpleNamespace(name=name, device=device, uuid=uuid, users=lambda: users, **more)


def policy(text, tmp_path):
    path = tmp_path / "control.toml"
    path.write_text(text)
    return load_policy(path)


def test_without_a_file_nobody_may_anything(tmp_path):
    for caller in (ADA, Caller(0, frozenset({0}))):
        with pytest.raises(ControlDenied, match="nobody is allowed anything by default"):
            load_policy(tmp_path / "none.toml").check(caller, [(knob(), 200.0)], 30.0)


@given(st.integers(0, 1 << 31), st.sampled_from(sorted(UNITS)), st.floats(0, 1e4), st.floats(1, 1e6))
def test_an_empty_policy_allows_no_request(uid, name, value, ttl_s):
    with pytest.raises(ControlDenied):
        Policy().check(Caller(uid, frozenset({uid})), [(knob(name), value)], ttl_s)


RULE = f'[[allow]]\nuser = "{ME}"\ndevices = ["gpu0"]\nknobs = ["power_cap_w"]\npower_cap_w = [150, 300]\n'


@pytest.mark.parametrize(
    ("caller", "wanted", "ttl_s", "why"),
    [
        (ADA, (knob(), 200.0), 30.0, None),
        (ADA, (knob(), 149.0), 30.0, "power_cap_w from 150 W to 300 W, not 149 W"),
        (ADA, (knob(), 301.0), 30.0, "from 150 W to 300 W"),
        (ADA, (knob(), "unlocked"), 30.0, "from 150 W to 300 W"),
        (ADA, (knob(device="gpu1", uuid="GPU-2"), 200.0), 30.0, "not on gpu1"),
        (ADA, (knob("sm_clock"), 1200.0), 30.0, "not sm_clock"),
        (ADA, (knob(), 200.0), 601.0, "at most 600 s of silence"),
        (ADA, (knob(is_shared=True), 200.0), 30.0, "MIG"),
        (STRANGER, (knob(), 200.0), 30.0, "no rule of the policy names you"),
        (Caller(ADA.uid, ADA.gids, "trainer"), (knob(), 200.0), 30.0, "no rule"),
    ],
)
def test_a_rule(tmp_path, caller, wanted, ttl_s, why):
    of = policy(RULE, tmp_path)
    if why is None:
        of.check(caller, [wanted], ttl_s)
    else:
        with pytest.raises(ControlDenied, match=why):
            of.check(caller, [wanted], ttl_s)


def test_a_lease_lasts_so_long_however_often_it_is_renewed(tmp_path):
    of = policy(RULE + "max_lease_s = 3600\n", tmp_path)
    of.check(ADA, [(knob(), 200.0)], 30.0, held_s=3600.0)
    with pytest.raises(ControlDenied, match="a lease of at most 3600 s"):
        of.check(ADA, [(knob(), 200.0)], 30.0, held_s=3601.0)
    with pytest.raises(ControlDenied, match="a lease of at most 604800 s"):
        policy(RULE, tmp_path).check(ADA, [(knob(), 200.0)], 30.0, held_s=1e6)


@pytest.mark.parametrize(
    ("rules", "is_bounded"),
    [
        (RULE, False),
        (RULE + "never_above_found = true\n", True),
        (RULE + "never_above_found = true\n" + RULE, False),
        (RULE + "never_above_found = true\n" + RULE.replace("gpu0", "gpu1"), True),
    ],
)
def test_what_may_never_be_set_above_what_was_found(tmp_path, rules, is_bounded):
    """Unless another rule allows it without that."""
    cap = knob()
    assert policy(rules, tmp_path).check(ADA, [(cap, 200.0)], 30.0) == ([cap] if is_bounded else [])


def test_knobs_that_are_untested_on_hardware_are_named_by_the_policy(tmp_path):
    package = knob("package_power", "cpu0", driver="cpu")
    rule = RULE.replace("gpu0", "*").replace('"power_cap_w"]', '"package_power_w"]')
    with pytest.raises(ControlDenied, match=r'cpu0 package_power_w needs untested = \["cpu"\] in the policy'):
        policy(rule, tmp_path).check(ADA, [(package, 90.0)], 30.0)
    of = policy('untested = ["cpu"]\n' + rule, tmp_path)
    of.check(ADA, [(package, 90.0)], 30.0)
    assert of.texts(ADA)[-1] == "untested on hardware: cpu"
    assert of.texts(STRANGER) == []


def test_one_knob_that_is_not_allowed_refuses_the_whole(tmp_path):
    with pytest.raises(ControlDenied, match="not on gpu1"):
        policy(RULE, tmp_path).check(ADA, [(knob(), 200.0), (knob(device="gpu1", uuid="GPU-2"), 200.0)], 30.0)


def test_a_remote_rule_is_for_a_key_and_not_for_the_user_who_asks_for_it(tmp_path):
    of = policy('[[allow]]\nremote = "trainer"\ndevices = ["*"]\nknobs = ["power_cap"]\n', tmp_path)
    of.check(Caller(5, frozenset(), "trainer"), [(knob(), 200.0)], 30.0)
    for caller in (Caller(5, frozenset()), Caller(5, frozenset(), "other"), Caller(0, frozenset({0}))):
        with pytest.raises(ControlDenied):
            of.check(caller, [(knob(), 200.0)], 30.0)


def test_a_group(tmp_path):
    of = policy(f'[[allow]]\ngroup = "{MINE}"\ndevices = ["GPU-1"]\nknobs = ["power_cap"]\n', tmp_path)
    of.check(Caller(12345, frozenset({os.getgid()})), [(knob(), 200.0)], 30.0)
    with pytest.raises(ControlDenied):
        of.check(STRANGER, [(knob(), 200.0)], 30.0)


@pytest.mark.parametrize(
    ("users", "is_allowed"), [(frozenset(), True), ({ADA.uid}, True), ({ADA.uid, 5}, False), (None, False)]
)
def test_nobody_else_computes_there(tmp_path, users, is_allowed):
    of = policy(RULE + 'require = "owns-all-processes"\n', tmp_path)
    if is_allowed:
        of.check(ADA, [(knob(users=users), 200.0)], 30.0)
    else:
        with pytest.raises(ControlDenied, match="only while nobody else computes on gpu0"):
            of.check(ADA, [(knob(users=users), 200.0)], 30.0)


def test_who_may_end_leases_of_others(tmp_path):
    assert not policy(RULE, tmp_path).may_steal(ADA)
    assert policy(RULE + "steal = true\n", tmp_path).may_steal(ADA)
    assert not policy(RULE + "steal = true\n", tmp_path).may_steal(STRANGER)


def test_whom_the_helper_believes(tmp_path):
    assert not Policy().believes(os.getuid())
    assert policy(f'powerd_user = "{ME}"\n', tmp_path).believes(os.getuid())


@pytest.mark.parametrize(
    "text",
    [
        "[[allow]]\ndevices = ['*']\nknobs = ['power_cap']\n",
        "[[allow]]\nuser = 'a'\ngroup = 'b'\n",
        "[[allow]]\nuser = 'a'\nknobs = ['fan']\n",
        "[[allow]]\nuser = 'a'\npower_cap_w = [300, 150]\n",
        "[[allow]]\nuser = 'a'\nmax_ttl = 5\n",
        "[[allow]]\nuser = 'a'\nmax_ttl_s = 'long'\n",
        "[[allow]]\nuser = 'a'\nmax_ttl_s = true\n",
        "[[allow]]\nuser = 'a'\nmax_lease_s = nan\n",
        "[[allow]]\nuser = 'a'\npower_cap_w = [150]\n",
        "[[allow]]\nuser = 'a'\npower_cap_w = ['150', '300']\n",
        "[[allow]]\nuser = 'a'\nsteal = 1\n",
        "[[allow]]\nuser = 5\n",
        "[[allow]]\nuser = 'a'\ndevices = 'gpu0'\n",
        "[[allow]]\nuser = 'a'\nrequire = 'luck'\n",
        "allow = [1]\n",
        "powerd_user = 5\n",
        "sm_clock_found = true\n",
        "sm_clock_found = [1200, 1300]\n",
        "sm_clock_found = 'fast'\n",
        "untested = ['fan']\n",
        "untested = 'amd'\n",
        "[[alow]]\nuser = 'a'\n",
        "allow = 1\n",
        "\0",
        "[[allow]\n",
    ],
)
def test_a_policy_that_cannot_be_understood_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match=r"control\.toml"):
        policy(text, tmp_path)


class TestFile:
    def test_that_others_can_write(self, tmp_path):
        policy(RULE, tmp_path)
        (tmp_path / "control.toml").chmod(0o666)
        with pytest.raises(ConfigError, match="can be written by others"):
            load_policy(tmp_path / "control.toml")

    def test_that_is_a_link(self, tmp_path):
        policy(RULE, tmp_path)
        (tmp_path / "link.toml").symlink_to(tmp_path / "control.toml")
        with pytest.raises(ConfigError):
            load_policy(tmp_path / "link.toml")

    def test_that_is_a_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.toml")
        with pytest.raises(ConfigError, match="no plain file"):
            load_policy(tmp_path / "pipe.toml")


def test_a_rule_says_what_it_allows():
    text = Rule(user="ada", devices=("gpu0",), knobs=("power_cap",), power_cap_w=(150.0, 300.0), steal=True).text()
    assert text == "power_cap_w; on gpu0; 150 W to 300 W; may end leases of others"
