# For every shell from now on: add this line to ~/.bashrc
#   eval "$(studio completion bash)"
_studio_completion() {
    local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}" word before=""
    word="${line##*[[:space:]]}"
    COMPREPLY=($(_STUDIO_COMPLETE="$line" "$1" 2>/dev/null | cut -f1))
    # Readline replaces only what stands behind the last of its word breaks.
    local breaks="${COMP_WORDBREAKS//[^=:@]/}"
    [[ -n $breaks ]] && before="${word%"${word##*[$breaks]}"}"
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=@:/.] ]] && compopt -o nospace
    return 0
}
complete -o default -F _studio_completion studio
