#!/usr/bin/env bash
# lint.sh [--all | FILE…]: clang-format and clang-tidy (19), over what differs from main, over everything, or over files.
# Changes nothing; `make format` formats. clang-tidy needs a configured build/release and takes some 20 s a file.
#   LINT_BASE=REF   what "differs" is measured from (default: origin/main, else main)
#   LINT_TIDY=0     clang-format only
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh --clang

case "${1:-}" in
  --all) mapfile -t files < <(git ls-files '*.h' '*.cc') ;;
  '')
    base=${LINT_BASE:-}
    [ -n "$base" ] || for ref in origin/main main; do
      if git rev-parse -q --verify "$ref^{commit}" >/dev/null; then base=$ref; break; fi
    done
    [ -n "$base" ] || { echo "lint: no main to compare with; set LINT_BASE or use --all" >&2; exit 2; }
    since=$(git merge-base "$base" HEAD)
    mapfile -t files < <({ git diff --name-only --diff-filter=d "$since" -- '*.h' '*.cc'
                           git ls-files --others --exclude-standard -- '*.h' '*.cc'; } | sort -u) ;;
  *) files=("$@") ;;
esac
[ ${#files[@]} -gt 0 ] || { echo 'lint: no C++ file differs'; exit 0; }

status=0
format=$(printf '%s\0' "${files[@]}" | xargs -0 -n 40 -P "$(nproc)" clang-format-19 --dry-run -Werror 2>&1) || status=1
grep -E '^[^ ].*error:' <<<"$format" | cut -d: -f1 | sort | uniq -c |
  awk '{ printf "lint: %s is not formatted (%d places): make format\n", $2, $1 }' || true

if [ "${LINT_TIDY:-1}" != 0 ]; then
  commands=build/sources/compile_commands.json
  mkdir -p build
  if [ ! -f build/release/compile_commands.json ]; then
    cmake --preset release >build/configure-release.log 2>&1 || { tail -30 build/configure-release.log >&2; exit 1; }
  fi
  ninja -C build/release baton_proto >/dev/null  # its headers are generated
  scripts/source_commands.py build/release build/sources
  tidy=()
  for file in "${files[@]}"; do
    case "$file" in *.cc) if grep -qF "/$file\"" "$commands"; then tidy+=("$file"); fi ;; esac
  done
  echo "lint: clang-format looked at ${#files[@]} files, clang-tidy looks at ${#tidy[@]}"
  if [ ${#tidy[@]} -gt 0 ]; then
    log=$(mktemp)
    printf '%s\0' "${tidy[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-19 -p build/sources --quiet \
      --extra-arg=-Wno-ignored-gch --extra-arg=-Wno-unused-command-line-argument >"$log" 2>/dev/null || status=1  # GCC's headers and options
    grep -E '(^|: )(error|warning):' "$log" | sort -u || true
    rm -f "$log"
  fi
fi
[ $status -eq 0 ] && echo 'lint: clean'
exit $status
