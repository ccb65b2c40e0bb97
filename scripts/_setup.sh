# shellcheck shell=bash
# What demo, test and bench need of a fresh Debian or Ubuntu machine. Source it, then call
#
#   setup_system PACKAGE...   FUSE and a compiler, and these packages beside them
#   setup_program PACKAGE [PROGRAM...]
#                             the program of that name in a package, and these, without its service
#   setup_python EXTRA...     a virtual environment with shardfs, editable, and these extras
#   find_python VERSION [BELOW]
#                             prints the newest Python from VERSION on
#   setup_client NAME PYTHON REQUIREMENT...
#                             an environment of its own for a program that cannot share that one
#   setup_zarr34 PYTHON       that of zarr-python 3.4
#   setup_node NAME REQUIREMENT...
#                             a directory with packages of npm
#
# All do nothing, and say nothing, where nothing is to be done. The environment is in .venv at the top of the
# repository, or where SHARDFS_VENV says; run its programs as "$SHARDFS_VENV/bin/...". It has the newest Python there is,
# or SHARDFS_PYTHON. That of a client is in it, in clients/NAME.

SHARDFS_TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SHARDFS_VENV=${SHARDFS_VENV:-$SHARDFS_TOP/.venv}

_say() {
    printf 'setup: %s\n' "$*" >&2
}

_die() {
    _say "$@"
    exit 1
}

# Run a command as root. Without a terminal nobody can answer sudo's question, so it must not ask.
_as_root() {
    if ((EUID == 0)); then
        "$@"
    elif [[ -t 0 ]]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

_apt_get() {
    _as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

# Install the packages that are missing. The package lists are fetched only when they turn out to be too old.
_install() {
    local package missing=() log
    for package in "$@"; do
        if [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
            missing+=("$package")
        fi
    done
    ((${#missing[@]})) || return 0
    if ((EUID)) && ! command -v sudo >/dev/null; then
        _die "neither root nor sudo: let somebody run 'apt-get install ${missing[*]}' first"
    fi
    _say "installing ${missing[*]}"
    log=$(mktemp)
    if ! {
        _apt_get install -y --no-install-recommends "${missing[@]}" ||
            { _apt_get update && _apt_get install -y --no-install-recommends "${missing[@]}"; }
    } >"$log" 2>&1; then
        cat "$log" >&2
        rm -f "$log"
        _die "cannot install ${missing[*]}; install them by hand, then run this again"
    fi
    rm -f "$log"
}

_has_apt() {
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null
}

# Say what to do where FUSE cannot work, instead of letting every mount fail with a riddle.
_check_fuse() {
    local capabilities
    if [[ ! -e /dev/fuse ]]; then
        _as_root modprobe fuse >/dev/null 2>&1 || true
    fi
    if [[ ! -e /dev/fuse ]]; then
        _die "there is no /dev/fuse: run 'modprobe fuse' on the host; start a container with" \
            "'--device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined'"
    fi
    if ! (: <>/dev/fuse) 2>/dev/null; then
        _die "/dev/fuse cannot be opened: run 'chmod 666 /dev/fuse' as root; start a container with" \
            "'--device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined'"
    fi
    capabilities=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
    if ((EUID == 0 && !(0x$capabilities >> 21 & 1))); then
        _die "root may not mount here: start the container with" \
            "'--device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined'"
    fi
}

setup_system() {
    if _has_apt; then
        _install fuse3 libfuse3-dev pkg-config gcc libc6-dev "$@"
    else
        _check_programs
    fi
    _check_fuse
}

# Name what is missing where no apt-get can install it, each with its package in Debian.
_check_programs() {
    local missing=()
    command -v fusermount3 >/dev/null || missing+=('fusermount3 (package fuse3 in Debian)')
    command -v gcc >/dev/null || missing+=('a C compiler (gcc)')
    if ! command -v pkg-config >/dev/null; then
        missing+=('pkg-config (pkg-config)')
    elif ! pkg-config --exists fuse3; then
        missing+=('headers of FUSE 3 (libfuse3-dev)')
    fi
    if ((${#missing[@]})); then
        _say 'there is no apt-get here to install what is missing:'
        printf '    %s\n' "${missing[@]}" >&2
        exit 1
    fi
}

setup_program() {
    local package=$1 program missing=() directory log
    for program in "$@"; do
        if ! command -v "$program" >/dev/null && [[ ! -x $SHARDFS_VENV/bin/$program ]]; then
            missing+=("$program")
        fi
    done
    if ! _has_apt || ((${#missing[@]} == 0)); then
        return
    fi
    _say "unpacking ${missing[*]} into $SHARDFS_VENV/bin"
    directory=$(mktemp -d)
    log=$directory/log
    if ! (
        cd "$directory"
        apt-get -qq download "$package" || { _apt_get update && apt-get -qq download "$package"; }
        dpkg-deb -x ./*.deb .
        for program in "${missing[@]}"; do
            install usr/*bin/"$program" "$SHARDFS_VENV/bin"
        done
    ) >"$log" 2>&1; then
        cat "$log" >&2
        _say "cannot unpack ${missing[*]}; tests that need it are skipped"
    fi
    rm -rf "$directory"
}

_is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' </dev/null >/dev/null 2>&1
}

# Print the newest complete Python that is at least VERSION ("3.12") and, if another one is given, below that; fails if
# there is none. pyfuse3 is compiled, which takes Python's headers; Debian packages them and venv apart.
find_python() {
    local candidate found newest=0 path=
    for candidate in "$SHARDFS_VENV/bin/python" python3 python3.1{9,8,7,6,5,4,3,2,1} /usr/bin/python3 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
        found=$(
            "$candidate" - "$@" 2>/dev/null <<'PYTHON'
import ensurepip, os, sys, sysconfig, venv
least, below = [tuple(map(int, version.split("."))) for version in (*sys.argv[1:], "4")][:2]
is_complete = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
if least <= sys.version_info < below and is_complete and sys.version_info.releaselevel == "final":
    print("%d%03d%03d" % sys.version_info[:3], sys.executable)
PYTHON
        ) || continue
        if [[ -n $found ]] && ((${found%% *} > newest)); then
            newest=${found%% *} path=${found#* }
        fi
    done
    [[ -n $path ]] && printf '%s\n' "$path"
}

# Print the newest complete Python; installs what is missing of one where none is complete.
_find_or_install_python() {
    local candidate version
    if find_python 3.11; then
        return
    fi
    _has_apt || _die "no Python >= 3.11 with its headers and venv (python3-dev and python3-venv in Debian)," \
        "and no apt-get to install one"
    for candidate in /usr/bin/python3 python3.13 python3.12 python3.11; do
        version=${candidate##*/}
        if _is_recent "$candidate"; then
            version=python$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        elif [[ $version == python3 ]] || ! _is_offered "$version"; then
            continue
        fi
        _install "$version" "$version-venv" "$version-dev"
        printf '/usr/bin/%s\n' "$version"
        return
    done
    _die "shardfs needs Python >= 3.11, and this system has none to install"
}

_is_offered() {
    if [[ -z $(apt-cache policy "$1" 2>/dev/null) ]]; then
        _apt_get update >/dev/null 2>&1 || true
    fi
    [[ $(apt-cache policy "$1" 2>/dev/null) == *Candidate:\ [0-9]* ]]
}

setup_python() {
    local extras python stamp wanted
    extras=$(IFS=, && printf '%s' "$*")
    stamp=$SHARDFS_VENV/.shardfs-${extras//,/-}
    wanted="$SHARDFS_TOP $(sha256sum <"$SHARDFS_TOP/pyproject.toml")"
    if _is_recent "$SHARDFS_VENV/bin/python"; then
        [[ ! -e $stamp || $(<"$stamp") != "$wanted" ]] || return 0
    else
        python=${SHARDFS_PYTHON:-$(_find_or_install_python)}
        _say "making a virtual environment in $SHARDFS_VENV with $python"
        "$python" -m venv --clear "$SHARDFS_VENV"
    fi
    _say "installing shardfs[$extras] in $SHARDFS_VENV"
    "$SHARDFS_VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --editable "${SHARDFS_TOP}[$extras]" </dev/null ||
        _die "pip could not install shardfs[$extras]; docs/install.md explains its messages"
    printf '%s' "$wanted" >"$stamp"
}

# Fails, and leaves nothing that looks finished, if a requirement cannot be had.
setup_client() {
    local directory=$SHARDFS_VENV/clients/$1 python=$2 wanted=${*:3}
    local stamp=$directory/.shardfs
    if _is_recent "$directory/bin/python" && [[ -e $stamp && $(<"$stamp") == "$wanted" ]]; then
        return
    fi
    _say "installing $wanted in $directory"
    "$python" -m venv --clear "$directory" </dev/null || return
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "${@:3}" \
        </dev/null || return
    printf '%s' "$wanted" >"$stamp"
}

# The same for a program of JavaScript.
setup_node() {
    local directory=$SHARDFS_VENV/clients/$1 wanted=${*:2}
    if [[ -e $directory/.shardfs && $(<"$directory/.shardfs") == "$wanted" ]]; then
        return
    fi
    _say "installing $wanted in $directory"
    mkdir -p "$directory"
    npm install --silent --no-fund --no-audit --prefix "$directory" "${@:2}" </dev/null || return
    printf '%s' "$wanted" >"$directory/.shardfs"
}

# The same for one that is built into its package, and needs no other.
setup_built() {
    local directory=$SHARDFS_VENV/clients/$1 wanted=$2
    if [[ -e $directory/.shardfs && $(<"$directory/.shardfs") == "$wanted" ]]; then
        return
    fi
    _say "installing $wanted in $directory"
    rm -rf "$directory"
    mkdir -p "$directory"
    npm pack --silent --pack-destination "$directory" "$wanted" </dev/null >/dev/null || return
    tar --extract --gzip --directory "$directory" --file "$directory"/*.tgz || return
    printf '%s' "$wanted" >"$directory/.shardfs"
}

# zarr-python 3.4, of which there is none for a Python before 3.12, which this machine may not have.
setup_zarr34() {
    setup_client zarr34 "$1" 'zarr>=3.4' 'numcodecs[google-crc32c]>=0.16' backports.zstd isal trio click \
        prometheus_client python-json-logger 'boto3>=1.43' 'obstore>=0.11' 'pycurl>=7.45.7' 'cast-value-rs>=0.4.2' zarr-n5 'dask[array]'
}
