# Sourced by the scripts that prepare a machine, which have `say`.

# install_missing PACKAGE ...: of these Debian packages those that are not installed, which $missing
# names afterwards. Ends the script where that takes root.
install_missing() {
  missing=()
  local package
  for package; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' \
      || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    say "these Debian packages are missing: ${missing[*]}"
    say "install them (apt-get install ${missing[*]}) or run this as root"
    exit 1
  fi
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}
