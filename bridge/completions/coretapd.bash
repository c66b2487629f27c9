# shellcheck shell=bash disable=SC2207 # the words have no blanks; older bash has no mapfile
# Completion of coretapd for bash. Asks the program, so that it is never stale.
_coretapd() {
	local cur=$2 prev=$3
	case $prev in
	--only | --exclude)
		COMPREPLY=($(compgen -W "$(coretap topics 2>/dev/null | grep -o '^[a-z_]*\.[a-z_]*')" -- "$cur"))
		return
		;;
	--pid)
		COMPREPLY=($(compgen -W "$(pgrep bitcoin 2>/dev/null)" -- "$cur"))
		return
		;;
	--user)
		COMPREPLY=($(compgen -u -- "$cur"))
		return
		;;
	--*)
		# What the help shows behind an option is its value.
		case $("$1" --help 2>/dev/null | sed -n "s/^ *$prev \([A-Z:]*\) .*/\1/p") in
		PATH | FILE) COMPREPLY=($(compgen -f -- "$cur")) && return ;;
		DIR) COMPREPLY=($(compgen -d -- "$cur")) && return ;;
		?*) return ;;
		esac
		;;
	esac
	COMPREPLY=($(compgen -W "$("$1" --help 2>/dev/null | grep -o '^ *--[a-z-]*')" -- "$cur"))
}
complete -o filenames -F _coretapd coretapd
