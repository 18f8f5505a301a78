"""Higher orders, selected lags and mixtures of chains: Rajaraman, Ekbote, D'Angelo, Park, Varre et al."""
