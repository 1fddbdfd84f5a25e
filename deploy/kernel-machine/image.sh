# Sourced, with the repository's root as current folder: what goes into the image of the emulated
# machine, and where the image is kept. The folder's name ends in a digest of all that decides about
# its contents, so that a change of these makes another image.
#
# variant   agent: with what the agent and its tests need; bare: a Debian as an installer leaves it,
#           for tests that install the rest
# DEBIAN    its release: 12 (the default) or 13
case ${DEBIAN:=12} in
  12) suite=bookworm python=3.11 ;;
  13) suite=trixie python=3.13 ;;
  *) echo "DEBIAN=$DEBIAN: there is an emulated machine of Debian 12 and one of 13" >&2; exit 2 ;;
esac
needed_kib=$((2 * 1024 * 1024))
mirror=${PLACEWIRE_DEBIAN_MIRROR:-http://deb.debian.org/debian}
system_packages=(systemd-sysv udev dbus openssh-server python3 kmod procps)
kernel_packages=(linux-image-amd64 initramfs-tools zstd)
# util-linux-extra: hwclock, for tests that take the machine's power.
agent_packages=(openvswitch-switch iperf3 iproute2 ethtool python3-venv util-linux-extra)
# What the agent needs, and what its tests do. No torch.
python_packages=('.[agent]' pytest pytest-asyncio hypothesis cryptography numpy scipy)

inputs() {
  cat deploy/kernel-machine/{image,build,wheels}.sh
  [[ $variant == agent ]] || return 0
  cat requirements.lock
  # The project's requirements; the settings of its tools decide nothing.
  sed '/^\[tool\.ruff/,$d' pyproject.toml
}
cache=${PLACEWIRE_KERNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/placewire/kernel-machine}
image=$cache/$variant-$DEBIAN-$(inputs | sha256sum | cut -c1-16)
