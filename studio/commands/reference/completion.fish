# For every shell from now on:
#   studio completion fish > ~/.config/fish/completions/studio.fish
function __studio_completion
    set -l found (_STUDIO_COMPLETE=(commandline -cp) studio 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c studio -f -a '(__studio_completion)'
