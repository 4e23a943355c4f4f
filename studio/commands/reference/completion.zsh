#compdef studio
# For every shell from now on: add this line to ~/.zshrc, below compinit
#   eval "$(studio completion zsh)"
_studio_completion() {
    local value meaning
    local -a whole open
    while IFS=$'\t' read -r value meaning; do
        if [[ $value == *[=@:/.] ]]; then
            open+=("${value//:/\\:}:$meaning")
        else
            whole+=("${value//:/\\:}:$meaning")
        fi
    done < <(_STUDIO_COMPLETE="${(j: :)words[1,CURRENT]}" $words[1] 2>/dev/null)
    if (( ! $#whole && ! $#open )); then
        _files
    else
        _describe studio whole -- open -S ''
    fi
}
compdef _studio_completion studio
