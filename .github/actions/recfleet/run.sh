#!/usr/bin/env bash
# Run the scenarios that SCENARIOS names, one a line, whatever becomes of those before; end with the first exit
# code that is not 0. SETTINGS (KEY=VALUE) and PLUGINS are one a line, too. Below OUT there are a run directory and
# NAME.xml with the verdicts for each; what a run prints goes to the summary of the job.
set -uo pipefail

options=()
while read -r line; do [[ -z $line ]] || options+=(--set "$line"); done <<<"$SETTINGS"
while read -r line; do [[ -z $line ]] || options+=(--plugin "$line"); done <<<"$PLUGINS"
mkdir -p "$OUT" || exit

code=0
while read -r scenario; do
    [[ -n $scenario ]] || continue
    name=${scenario%.yaml}
    name=${name//\//-}
    echo "::group::$scenario"
    said=$(COLUMNS=120 recfleet run "$scenario" ${options[@]+"${options[@]}"} --plain --out "$OUT/$name" --junit "$OUT/$name.xml" </dev/null)
    ended=$?
    printf '%s\n::endgroup::\n' "$said"
    printf '### %s: exit code %d\n\n```text\n%s\n```\n\n' "$scenario" "$ended" "$said" >>"$GITHUB_STEP_SUMMARY"
    case $ended in
    0) continue ;;
    2) why="it is invalid, or its data cannot be read" ;;
    3) why="a threshold was missed" ;;
    *) why="exit code $ended" ;;
    esac
    echo "::error title=recfleet::$scenario: $why"
    [[ $code != 0 ]] || code=$ended
done <<<"$SCENARIOS"
exit "$code"
